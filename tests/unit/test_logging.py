"""Signals as log lines: what a plain text log says of an event."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.observability.logging import EventFormatter, RedactingFilter, log_signals
from outrider.signals import EventFailed, EventHandled, LanesChanged, PublishDeferred

FORMATTER = EventFormatter("%(levelname)s %(message)s")


def test_plain_text_line_names_the_event_the_handler_and_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event_id = uuid4()
    failed = EventFailed(
        sink="default",
        event_id=event_id,
        event_type="order.placed",
        correlation_id="req-1 attempt=9",
        attempt=3,
        reason="shop.send_invoice: ValueError",
    )

    log_signals(failed)

    (record,) = caplog.records
    assert FORMATTER.format(record) == (
        f"CRITICAL event failed, a person must look sink=default event_id={event_id} "
        "event_type=order.placed correlation_id='req-1 attempt=9' attempt=3 "
        "reason='shop.send_invoice: ValueError'"
    )


def test_event_that_waits_for_its_sink_is_a_warning_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deferred = PublishDeferred(
        sink="default",
        event_id=(event_id := uuid4()),
        event_type="order.placed",
        correlation_id=None,
        wait=timedelta(seconds=1),
        reason="full",
    )

    log_signals(deferred)

    (record,) = caplog.records
    assert FORMATTER.format(record) == (
        "WARNING event deferred: its aggregate waits for the sink, no attempt is counted "
        f"sink=default event_id={event_id} event_type=order.placed reason=full"
    )


def test_plain_text_line_leaves_out_what_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handled = EventHandled(
        handler="shop.send_invoice",
        event_id=(event_id := uuid4()),
        event_type="order.placed",
        correlation_id=None,
        outcome="ok",
        attempt=1,
        took=timedelta(milliseconds=2),
        reason=None,
    )

    log_signals(handled)
    log_signals(LanesChanged(relay="one", sink="default", lanes=64, orphaned=0))

    handled_line, lanes_line = (FORMATTER.format(record) for record in caplog.records)
    assert handled_line == (
        f"INFO event handled handler=shop.send_invoice event_id={event_id} "
        "event_type=order.placed attempt=1 outcome=ok duration_ms=2.0"
    )
    assert lanes_line == "INFO relay one has 64 lanes"


@given(st.text(), st.text())
def test_whatever_strangers_have_named_a_record_stays_one_line(said: str, found: str) -> None:
    record = logging.LogRecord("outrider.relay", logging.INFO, __file__, 1, said, (), None)
    record.correlation_id = found

    line = FORMATTER.format(record)

    assert line.isprintable()


def test_readable_text_is_left_as_it_is() -> None:
    record = logging.LogRecord("outrider.relay", logging.INFO, __file__, 1, "Käse 🧀", (), None)

    assert FORMATTER.format(record) == "INFO Käse 🧀"


@pytest.mark.parametrize(
    ("logger", "level", "withheld"),
    [
        ("aiokafka.producer.producer", logging.DEBUG, True),
        ("aiokafka", logging.ERROR, False),
        ("aiokafka_of_somebody_else", logging.DEBUG, False),
        ("aiormq.channel", logging.ERROR, True),
        ("sqlalchemy.engine.Engine", logging.INFO, True),
        ("sqlalchemy.engine.Engine", logging.WARNING, False),
        ("outrider.relay", logging.DEBUG, False),
    ],
)
def test_loggers_that_quote_payloads_say_only_that_they_spoke(
    logger: str, level: int, withheld: bool
) -> None:
    try:
        raise ValueError("canary-7b1")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord(logger, level, __file__, 1, "sent %s", ("canary-7b1",), error)

    passed = RedactingFilter().filter(record)

    line = FORMATTER.format(record)
    assert passed
    assert ("canary-7b1" not in line) == withheld
    assert ("test_logging.py:1" in line) == withheld

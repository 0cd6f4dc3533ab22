"""Logging without any setup: relays and consumers of the caller's own process tell what happens."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from outrider import (
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    InMemoryEventBus,
    InProcessPublisher,
    OutboxRelay,
    event_context,
)
from outrider import signals as s
from outrider.cli.processes import serve
from outrider.lifecycle import BackgroundService
from outrider.observability import Signal, combine, log_signals
from outrider.settings.process import ProcessConfig
from outrider.stream import StreamManager
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.doubles import RecordingHandler
from tests.support.until import until

if TYPE_CHECKING:
    from outrider.stream.delivered import DeliveredEvents

ALONE = """
import asyncio
from datetime import timedelta
from outrider import DomainEvent, InProcessPublisher, OutboxRelay, RelayConfig
from outrider.testing.memory_store import MemoryOutboxStore

class Book:
    name = "book"

    async def handle(self, envelope):
        raise KeyError("canary-7b1")

async def main():
    store = MemoryOutboxStore()
    row, = store.record(DomainEvent("order.placed", "order", 1, {}))
    config = RelayConfig(max_retries=2, poll_interval=timedelta(seconds=0.05))
    async with OutboxRelay(store, InProcessPublisher([("*", Book())]), config):
        while row.status != "failed":
            await asyncio.sleep(0.01)
    print(row.event.id)

asyncio.run(main())
"""


def order() -> DomainEvent:
    return DomainEvent("order.placed", "order", 1, {})


def test_process_without_any_logging_setup_shows_what_failed_and_where() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=True
    )

    event = f"event_id={done.stdout.strip()} event_type=order.placed"
    lines = done.stderr.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["handler", "event"] * 2
    assert all(event in line for line in lines)
    assert ["attempt=1" in line for line in lines] == [True, True, False, False]
    assert ["attempt=2" in line for line in lines] == [False, False, True, True]
    assert all("KeyError at <string>:" in line and "in Book.handle" in line for line in lines)
    assert lines[1].startswith("event refused, next try in 0 s sink=default")
    assert lines[3].startswith("event failed, a person must look sink=default")
    assert "canary-7b1" not in done.stderr


async def test_publishing_and_handling_are_audited_with_the_correlation_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    store, broker, handler = MemoryOutboxStore(), MemoryBroker(), RecordingHandler()
    with event_context(correlation_id="req-1"):
        (row,) = store.record(order())

    async with OutboxRelay(store, broker.publisher()):
        await until(lambda: row.status == "published")
    async with EventConsumer(broker.source(), [("*", handler)]):
        await until(lambda: bool(handler.handled))

    audit = [record for record in caplog.records if record.name == "outrider.audit"]
    assert [
        record.getMessage().partition(" sink")[0].partition(" handler")[0] for record in audit
    ] == [
        "event published",
        "event handled",
    ]
    for record in audit:
        assert record.levelno == logging.INFO
        facts = vars(record)
        assert facts["correlation_id"] == "req-1"
        assert facts["event_id"] == str(row.event.id)
        assert f"event_id={row.event.id}" in record.getMessage()
        assert "correlation_id=req-1" in record.getMessage()


def services(**options: Callable[[Signal], None] | None) -> list[BackgroundService]:
    return [
        OutboxRelay(MemoryOutboxStore(), InMemoryEventBus(), **options),
        EventConsumer(MemoryBroker().source(), **options),
        StreamManager(cast("DeliveredEvents", None), **options),
    ]


async def test_every_service_logs_unless_it_is_told_otherwise() -> None:
    told: list[Signal] = []

    assert [service.on_signal for service in services()] == [log_signals] * 3
    assert [service.on_signal for service in services(on_signal=None)] == [None] * 3
    assert [service.on_signal for service in services(on_signal=told.append)] == [told.append] * 3


@pytest.mark.parametrize("silent", [True, False])
async def test_in_process_handlers_log_unless_they_are_told_otherwise(
    caplog: pytest.LogCaptureFixture, silent: bool
) -> None:
    caplog.set_level(logging.INFO)
    handlers = [("*", RecordingHandler())]
    publisher = (
        InProcessPublisher(handlers, on_signal=None) if silent else InProcessPublisher(handlers)
    )

    await publisher.publish(order().to_envelope())

    assert len(caplog.records) == (0 if silent else 1)


def test_receivers_are_combined_and_an_error_of_one_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Signal] = []

    def broken(_: Signal) -> None:
        raise KeyError("canary-7b1")

    signal = s.SinkAvailable(sink="default")
    combine(told.append, broken, told.append)(signal)

    assert told == [signal, signal]
    (record,) = caplog.records
    assert "KeyError at " in record.getMessage()
    assert "canary-7b1" not in record.getMessage()


class Untouched(list[EventEnvelope]):
    """Nobody may look at these."""

    def __iter__(self) -> Iterator[EventEnvelope]:
        raise AssertionError("the accepted events were looked at")


def test_audit_costs_nothing_above_its_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    published = s.BatchPublished(
        sink="default",
        accepted=Untouched(),  # type: ignore[arg-type]
        refused=0,
        deferred=0,
        unknown=0,
        took=timedelta(0),
    )

    log_signals(published)

    assert caplog.records == []
    caplog.set_level(logging.INFO)
    with pytest.raises(AssertionError, match="looked at"):
        log_signals(published)


@pytest.fixture
def levels() -> Iterator[None]:
    """Puts the levels back that a command sets."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    logging.getLogger("outrider.audit").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize(
    ("config", "audited"),
    [
        (ProcessConfig(), True),
        (ProcessConfig(audit=False), False),
        (ProcessConfig(quiet=True), False),
    ],
    ids=["default", "no audit", "quiet"],
)
def test_command_logs_a_line_for_every_event_unless_it_is_told_otherwise(
    config: ProcessConfig, audited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing() -> None: ...

    monkeypatch.setattr(logging.root, "handlers", [])  # as in a new process
    serve(nothing, config)

    assert logging.getLogger("outrider.audit").isEnabledFor(logging.INFO) == audited
    assert logging.getLogger("outrider.relay").isEnabledFor(logging.INFO) == (not config.quiet)

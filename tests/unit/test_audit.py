"""What is logged about events: who, which and when, and never what they say."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from outrider import (
    DomainEvent,
    EventEnvelope,
    InProcessPublisher,
    OutboxRelay,
    RelayConfig,
    event_context,
)
from outrider.testing.memory_store import MemoryOutboxStore, MemoryRow
from tests.support.canary import CANARY
from tests.support.doubles import RecordingHandler
from tests.support.until import until

CONFIG = RelayConfig(max_retries=1, poll_interval=timedelta(milliseconds=10))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def record_secret(store: MemoryOutboxStore, event_type: str, aggregate_id: int = 1) -> MemoryRow:
    with event_context(correlation_id="request-7", user_id=f"user-{CANARY}"):
        (row,) = store.record(DomainEvent(event_type, "order", aggregate_id, {"note": CANARY}))
    return row


async def test_every_event_leaves_lines_with_its_ids_and_none_with_payload_or_user(
    log: pytest.LogCaptureFixture,
) -> None:
    async def fail(envelope: EventEnvelope) -> None:
        raise ValueError(f"cannot book {envelope.payload['note']} of {envelope.metadata.user_id}")

    store, fine = MemoryOutboxStore(), RecordingHandler(name="fine")
    handlers = [("order.placed", fine), ("order.lost", RecordingHandler(fail, "bad"))]
    rows = [record_secret(store, "order.placed", 1), record_secret(store, "order.lost", 2)]
    async with OutboxRelay(store, InProcessPublisher(handlers), CONFIG):
        await until(lambda: [row.status for row in rows] == ["published", "failed"])

    for row in rows:
        lines = [line for line in log.messages if str(row.event.id) in line]
        assert len(lines) >= 2
        assert all(row.event.event_type in line and "request-7" in line for line in lines)
    audited = [r.getMessage() for r in log.records if r.name == "outrider.audit"]
    assert any(line.startswith("event published") for line in audited)
    assert any(line.startswith("event handled") for line in audited)
    assert CANARY not in log.text
    assert all(CANARY not in str(vars(record)) for record in log.records)


async def test_handler_gets_the_metadata_that_it_needs_to_check_authority() -> None:
    store, handler = MemoryOutboxStore(), RecordingHandler()
    record_secret(store, "order.placed")

    async with OutboxRelay(store, InProcessPublisher([("*", handler)]), CONFIG, on_signal=None):
        await until(lambda: bool(handler.handled))

    metadata = handler.handled[0].metadata
    assert (metadata.user_id, metadata.correlation_id) == (f"user-{CANARY}", "request-7")

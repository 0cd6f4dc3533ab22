"""The outbox in memory: a service's tests run a relay with no database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outrider import (
    DomainEvent,
    EventEnvelope,
    ExponentialRetry,
    InMemoryEventBus,
    InvalidEvent,
    OutboxRelay,
    RelayConfig,
    event_context,
)
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.until import until

RARELY = RelayConfig(poll_interval=timedelta(hours=1))
OFTEN = RelayConfig(
    poll_interval=timedelta(milliseconds=10),
    retry=ExponentialRetry(first=timedelta(hours=1), cap=timedelta(hours=1)),
    max_retries=3,
)


def event(aggregate: int = 1, **payload: int) -> DomainEvent:
    return DomainEvent("order.placed", "order", aggregate, payload)


class Moody:
    """A handler that refuses until it is told otherwise."""

    name = "moody"

    def __init__(self) -> None:
        self.refuses = True

    async def handle(self, _envelope: EventEnvelope, /) -> None:
        if self.refuses:
            raise ValueError("no")


async def test_relay_brings_recorded_events_without_a_poll_and_in_order() -> None:
    outbox, bus = MemoryOutboxStore(), InMemoryEventBus()

    async with OutboxRelay(outbox, bus, RARELY):
        with event_context(correlation_id="r-1"):
            outbox.record(*(event(n % 3, n=n) for n in range(30)))
        await until(lambda: all(row.status == "published" for row in outbox.rows))

    assert [e.payload["n"] for e in bus.events_for_aggregate("2")] == list(range(2, 30, 3))
    assert {e.metadata.correlation_id for e in bus.published_events} == {"r-1"}
    assert {row.delivery_number for row in outbox.rows} == set(range(1, 31))


async def test_two_relays_share_the_work_without_duplicates() -> None:
    outbox, bus = MemoryOutboxStore(), InMemoryEventBus()

    async with OutboxRelay(outbox, bus, OFTEN), OutboxRelay(outbox.of_sink("default"), bus, OFTEN):
        outbox.record(*(event(n) for n in range(200)))
        await until(lambda: all(row.status == "published" for row in outbox.rows))

    assert bus.event_count == 200


async def test_sink_that_refuses_does_not_hold_up_the_other() -> None:
    outbox = MemoryOutboxStore(sink="a", routes={"*": ["a", "b"]})
    bad, good = InMemoryEventBus([("order.placed", Moody())]), InMemoryEventBus()
    at_b = outbox.of_sink("b")

    async with OutboxRelay(outbox, bad, OFTEN), OutboxRelay(at_b, good, OFTEN):
        outbox.record(event(n=1), event(n=2))
        await until(lambda: good.event_count == 2 and outbox.rows[0].retry_count > 0)

    assert [row.status for row in outbox.rows] == ["pending", "pending"]
    assert [row.status for row in at_b.rows] == ["published", "published"]


async def test_moving_the_clock_ends_a_wait() -> None:
    ahead = timedelta(0)
    outbox = MemoryOutboxStore(clock=lambda: datetime.now(UTC) + ahead)
    handler = Moody()

    async with OutboxRelay(outbox, InMemoryEventBus([("order.placed", handler)]), OFTEN):
        (row,) = outbox.record(event())
        await until(lambda: row.retry_count == 1)
        handler.refuses = False
        assert row.status == "pending"
        ahead += timedelta(minutes=61)
        await until(lambda: row.status == "published")

    assert row.last_error is not None


def test_event_is_recorded_once() -> None:
    outbox, once = MemoryOutboxStore(), event().to_envelope()
    outbox.record(once)

    with pytest.raises(InvalidEvent, match="was recorded before"):
        outbox.record(event(), once)
    with pytest.raises(InvalidEvent, match="was recorded before"):
        outbox.record(*[event().to_envelope()] * 2)

    assert len(outbox.rows) == 1


def test_printing_a_row_shows_no_payload() -> None:
    (row,) = MemoryOutboxStore().record(DomainEvent("order.placed", "order", 1, {"name": "canary"}))

    assert "canary" not in repr(row)

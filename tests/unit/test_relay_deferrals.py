"""A sink that cannot take an event now: its aggregate waits, and no attempt is counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from outrider import (
    DatabaseUnavailable,
    DomainEvent,
    EventEnvelope,
    InProcessPublisher,
    OutboxRelay,
    RelayConfig,
)
from outrider.brokers import ACCEPTED, Deferred, Outcome, Refused
from outrider.outcomes import ClaimedEvent
from outrider.relay.deferrals import Deferrals
from outrider.signals import (
    BatchPublished,
    EventFailed,
    PublishDeferred,
    PublishRetried,
    SinkUnavailable,
)
from outrider.testing.memory_store import MemoryOutboxStore, MemoryRow
from tests.support.doubles import RecordingSink, SignalRecorder
from tests.support.until import until

FULL = Deferred("the queue is full")
POLLING = RelayConfig(poll_interval=timedelta(milliseconds=5), max_retries=4, loops=1)


class Clock:
    """The database's clock; tests move it."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def event(aggregate: int, n: int = 0) -> DomainEvent:
    return DomainEvent("order.placed", "order", aggregate, {"n": n})


def claimed(outbox: MemoryOutboxStore) -> Sequence[ClaimedEvent]:
    return [row.claimed() for row in outbox.rows]


def statuses(rows: Sequence[MemoryRow]) -> set[str]:
    return {row.status for row in rows}


async def test_event_that_a_full_sink_defers_waits_without_limit_and_then_arrives_in_order() -> (
    None
):
    # given a sink that defers one aggregate, far more often than attempts are allowed
    clock = Clock()
    outbox, heard = MemoryOutboxStore(clock=clock), SignalRecorder()
    room = False

    def answer(envelope: EventEnvelope) -> Outcome:
        return FULL if envelope.aggregate_id == "1" and not room else ACCEPTED

    sink = RecordingSink(answer)
    async with OutboxRelay(outbox, sink, POLLING, on_signal=heard):
        outbox.record(event(1, 0), event(2, 0), event(1, 1), event(2, 1))
        for deferred in range(1, 13):
            await heard.until(lambda: _deferred(heard) >= deferred)  # noqa: B023 - awaited at once
            clock.now += timedelta(seconds=31)
        first, _, second, _ = outbox.rows

        # then no attempt was counted, and the other aggregate went on
        assert (first.status, first.retry_count, first.last_error) == ("pending", 0, FULL.reason)
        assert (second.status, second.retry_count) == ("pending", 0)
        assert sink.of(2) == [0, 1]

        # when there is room again
        room = True
        clock.now += timedelta(seconds=31)
        await until(lambda: statuses(outbox.rows) == {"published"})

    # then
    assert sink.of(1) == [0, 1]
    assert not heard.of(EventFailed, PublishRetried, SinkUnavailable)


async def test_handler_whose_database_is_away_delays_only_its_own_aggregate() -> None:
    outbox, heard = MemoryOutboxStore(), SignalRecorder()

    class Waiting:
        name = "waiting"

        async def handle(self, envelope: EventEnvelope, /) -> None:
            if envelope.aggregate_id == "1":
                raise DatabaseUnavailable("away")

    publisher = InProcessPublisher([("order.placed", Waiting())], on_signal=heard)
    async with OutboxRelay(outbox, publisher, POLLING, on_signal=heard):
        outbox.record(event(1), event(2))
        await until(lambda: outbox.rows[1].status == "published")
        await heard.until(lambda: bool(heard.of(PublishDeferred)))

    assert (outbox.rows[0].status, outbox.rows[0].retry_count) == ("pending", 0)
    assert not heard.of(SinkUnavailable)


def _deferred(heard: SignalRecorder) -> int:
    return sum(batch.deferred for batch in heard.of(BatchPublished))


async def test_wait_is_told_once_for_each_aggregate_and_reason() -> None:
    clock = Clock()
    outbox, heard = MemoryOutboxStore(clock=clock), SignalRecorder()
    sink = RecordingSink(lambda _: FULL)

    async with OutboxRelay(outbox, sink, POLLING, on_signal=heard):
        outbox.record(event(1), event(2))
        for deferred in (2, 4, 6):
            await heard.until(lambda: _deferred(heard) >= deferred)  # noqa: B023 - awaited at once
            clock.now += timedelta(seconds=31)
        told = heard.of(PublishDeferred)
        sink.answer = lambda _: Deferred("no queue")
        await heard.until(lambda: len(heard.of(PublishDeferred)) == 4)

    assert [signal.reason for signal in told] == [FULL.reason] * 2
    assert {signal.event_id for signal in told} == {row.event.id for row in outbox.rows}


async def test_refusal_still_costs_attempts_beside_a_deferral() -> None:
    outbox, heard = MemoryOutboxStore(), SignalRecorder()
    answers = {"1": FULL, "2": Refused("too large")}
    sink = RecordingSink(lambda envelope: answers[envelope.aggregate_id])

    async with OutboxRelay(outbox, sink, POLLING, on_signal=heard):
        outbox.record(event(1), event(2))
        await heard.until(lambda: bool(heard.of(EventFailed)))

    waiting, failed = outbox.rows
    assert (waiting.status, waiting.retry_count) == ("pending", 0)
    assert (failed.status, failed.retry_count) == ("failed", 4)


class Waits:
    """A retry policy with a wait of its own for each refusal."""

    def __init__(self, *milliseconds: int) -> None:
        self._left = [timedelta(milliseconds=each) for each in milliseconds]

    def delay_after(self, _attempt: int, /) -> timedelta:
        return self._left.pop(0)


async def test_each_event_is_retried_when_its_own_wait_is_over_and_not_with_the_poll() -> None:
    # given two refused events that wait for different times, and no poll for an hour
    outbox, tried = MemoryOutboxStore(), list[str]()

    def answer(envelope: EventEnvelope) -> Outcome:
        tried.append(envelope.aggregate_id)
        return Refused("not yet") if tried.count(envelope.aggregate_id) == 1 else ACCEPTED

    config = RelayConfig(poll_interval=timedelta(hours=1), retry=Waits(100, 10), loops=1)

    # when
    async with OutboxRelay(outbox, RecordingSink(answer), config):
        outbox.record(event(1), event(2))
        await until(lambda: statuses(outbox.rows) == {"published"}, within=10)

    # then
    assert tried == ["1", "2", "2", "1"]


async def test_full_batch_that_the_sink_defers_slows_the_relay_down() -> None:
    outbox, heard = MemoryOutboxStore(), SignalRecorder()
    config = RelayConfig(batch_size=1, loops=1)

    async with OutboxRelay(outbox, RecordingSink(lambda _: FULL), config, on_signal=heard):
        started = time.monotonic()
        outbox.record(*(event(aggregate) for aggregate in range(50)))
        await heard.until(lambda: _deferred(heard) == 3)
        assert time.monotonic() - started >= 0.24, "0.1 s and 0.2 s, each less at most a fifth"


def test_backoff_of_an_aggregate_grows_to_half_a_minute_and_starts_anew_when_accepted() -> None:
    outbox = MemoryOutboxStore()
    outbox.record(event(1), event(2))
    first, other = claimed(outbox)
    deferrals = Deferrals("default", SignalRecorder())

    items = [item for _ in range(9) for item in deferrals.defer([(first, "full")])]
    waits = [item.wait.total_seconds() for item in items if item.wait]

    assert not any(item.counted for item in items)
    assert 0.8 <= waits[0] <= 1.0
    assert 24.0 <= waits[-1] <= 30.0
    deferrals.accepted([other])
    assert _wait_s(deferrals, first) >= 24.0
    deferrals.accepted([first])
    assert _wait_s(deferrals, first) <= 1.0


def _wait_s(deferrals: Deferrals, item: ClaimedEvent) -> float:
    [deferred] = deferrals.defer([(item, "full")])
    assert deferred.wait is not None
    return deferred.wait.total_seconds()


def test_only_the_oldest_event_of_an_aggregate_is_written_down_as_waiting() -> None:
    outbox, heard = MemoryOutboxStore(), SignalRecorder()
    outbox.record(event(1, 0), event(1, 1), event(2))
    first, _, other = events = claimed(outbox)

    deferred = Deferrals("default", heard).defer((item, "full\n") for item in events)

    assert [item.event for item in deferred] == [first, other]
    assert {item.reason for item in deferred} == {"full\\n"}
    assert len(heard.of(PublishDeferred)) == 2


async def test_aggregate_that_went_on_before_it_had_to_wait_is_told_of_once() -> None:
    clock = Clock()
    outbox, heard = MemoryOutboxStore(clock=clock), SignalRecorder()
    sink = RecordingSink(lambda envelope: FULL if envelope.payload["n"] else ACCEPTED)

    async with OutboxRelay(outbox, sink, POLLING, on_signal=heard):
        outbox.record(event(1, 0), event(1, 1))
        for deferred in (1, 2):
            await heard.until(lambda: _deferred(heard) >= deferred)  # noqa: B023 - awaited at once
            clock.now += timedelta(seconds=31)

    assert len(heard.of(PublishDeferred)) == 1


def test_memory_of_aggregates_that_wait_is_bounded() -> None:
    outbox, deferrals = MemoryOutboxStore(), Deferrals("default", lambda _: None)
    outbox.record(*(event(aggregate) for aggregate in range(10_001)))
    events = claimed(outbox)
    deferrals.defer((item, "full") for item in events)

    assert _wait_s(deferrals, events[-1]) > 1.0
    assert _wait_s(deferrals, events[0]) <= 1.0, "the oldest was dropped, and begins anew"

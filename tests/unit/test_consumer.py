"""The consumer: order, retries, dead letters, acknowledgements after the work, and its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from outrider import (
    ConfigurationError,
    ConsumerConfig,
    DatabaseUnavailable,
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    EventSubscriber,
    ExponentialRetry,
    IdempotentHandler,
)
from outrider.consumer.inbox import MemoryProcessedEvents
from outrider.relay.retry import RetryPolicy
from outrider.signals import (
    ConsumerStopped,
    EventDeadLettered,
    Signal,
    SourceAvailable,
    SourceUnavailable,
)
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler
from tests.support.until import until

Work = Callable[[EventEnvelope], Awaitable[Any]]
AT_ONCE: RetryPolicy = ExponentialRetry(
    first=timedelta(microseconds=1), cap=timedelta(microseconds=1)
)


def event(aggregate: str = "a", number: int = 0, event_type: str = "thing.changed") -> DomainEvent:
    return DomainEvent(event_type, "thing", aggregate, {"n": number})


async def send(broker: MemoryBroker, *events: DomainEvent) -> list[EventEnvelope]:
    envelopes = [event.to_envelope() for event in events]
    await broker.publisher().publish_all(envelopes)
    return envelopes


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(receive_wait=timedelta(milliseconds=10))


@asynccontextmanager
async def consuming(
    broker: MemoryBroker, *handlers: RecordingHandler, **settings: Any
) -> AsyncIterator[list[Signal]]:
    told: list[Signal] = []
    given = {"retry": AT_ONCE, "max_retries": 3, **settings}
    consumer = EventConsumer(
        broker.source(),
        [("thing.*", handler) for handler in handlers],
        ConsumerConfig(**given),
        on_signal=told.append,
    )
    async with asyncio.timeout(10), consumer:
        yield told


async def unacknowledged(broker: MemoryBroker) -> list[EventEnvelope | None]:
    """What the next consumer of the group would get."""
    return [delivery.envelope for delivery in await broker.source().receive(1000)]


async def test_consumer_is_a_subscriber_and_brings_events_to_handlers(broker: MemoryBroker) -> None:
    handler, other = RecordingHandler(), RecordingHandler()
    consumer = EventConsumer(broker.source())
    consumer.subscribe_all(["thing.changed", "thing.made"], handler)
    consumer.subscribe("other.*", other)
    sent = await send(broker, event("a"), event("b", event_type="thing.made"))

    async with consumer, asyncio.timeout(10):
        await until(lambda: len(handler.handled) == 2)

    assert isinstance(consumer, EventSubscriber)
    assert handler.handled == sent
    assert other.handled == []
    assert await unacknowledged(broker) == []


async def test_aggregates_are_handled_side_by_side_and_each_in_order(broker: MemoryBroker) -> None:
    running, most = Counter[str](), Counter[str]()

    async def work(envelope: EventEnvelope) -> None:
        key = envelope.aggregate_id
        running[key] += 1
        most[key] = max(most[key], running[key])
        most["all"] = max(most["all"], running.total())
        await asyncio.sleep(0.001 if envelope.payload["n"] % 2 else 0)
        running[key] -= 1

    handler = RecordingHandler(work)
    await send(broker, *(event(f"a{n % 7}", n) for n in range(140)))

    async with consuming(broker, handler, concurrency=4):
        await until(lambda: len(handler.handled) == 140)

    for number in range(7):
        key = f"a{number}"
        mine = [e.payload["n"] for e in handler.handled if e.aggregate_id == key]
        assert mine == sorted(mine)
        assert most[key] == 1
    assert most["all"] == 4


async def test_acknowledged_only_after_the_handler_is_done(broker: MemoryBroker) -> None:
    go_on, started = asyncio.Event(), asyncio.Event()

    async def work(_: EventEnvelope) -> None:
        started.set()
        await go_on.wait()

    [sent] = await send(broker, event())
    source = broker.source()
    consumer = EventConsumer(
        source, [("*", RecordingHandler(work))], ConsumerConfig(grace=timedelta(0))
    )
    async with asyncio.timeout(10):
        await consumer.start()
        await started.wait()
        await consumer.stop()  # its grace time is over at once

    assert await unacknowledged(broker) == [sent]


async def test_failed_event_is_tried_again_before_its_successors(broker: MemoryBroker) -> None:
    troubles = iter([ValueError(), ValueError()])

    async def work(envelope: EventEnvelope) -> None:
        if envelope.payload["n"] == 0 and (trouble := next(troubles, None)):
            raise trouble

    handler = RecordingHandler(work)
    await send(broker, event("a", 0), event("a", 1), event("b", 2))

    async with consuming(broker, handler):
        await until(lambda: len(handler.handled) == 3)

    assert [e.payload["n"] for e in handler.handled if e.aggregate_id == "a"] == [0, 1]
    assert broker.dead_letters == []


@pytest.mark.fault("E1")
async def test_out_of_attempts_it_is_set_aside_and_the_rest_goes_on(broker: MemoryBroker) -> None:
    async def work(envelope: EventEnvelope) -> None:
        if envelope.payload["n"] == 0:
            raise ValueError("canary-7b1")

    handler = RecordingHandler(work)
    sent = await send(broker, event("a", 0), event("a", 1))

    async with consuming(broker, handler) as told:
        await until(lambda: len(handler.handled) == 1 and bool(broker.dead_letters))

    (letter,) = broker.dead_letters
    assert letter.reason.startswith("handler: ValueError at ")
    assert "canary-7b1" not in letter.reason
    [aside] = [signal for signal in told if isinstance(signal, EventDeadLettered)]
    assert aside.event_id == sent[0].event_id
    assert await unacknowledged(broker) == []
    assert "canary" not in repr(told)


@pytest.mark.fault("E3")
async def test_what_cannot_be_decoded_is_set_aside_at_once(broker: MemoryBroker) -> None:
    calls = 0

    async def work(envelope: EventEnvelope) -> None:
        nonlocal calls
        calls += 1
        envelope.payload_as(int)  # the payload is an object

    await send(broker, event())
    broker.put(b"no event at all")

    async with consuming(broker, RecordingHandler(work)):
        await until(lambda: len(broker.dead_letters) == 2)

    assert calls == 1
    assert await unacknowledged(broker) == []


async def test_database_that_is_away_costs_no_attempts(broker: MemoryBroker) -> None:
    troubles = iter([DatabaseUnavailable("away")] * 5)

    async def work(_: EventEnvelope) -> None:
        if trouble := next(troubles, None):
            raise trouble

    handler = RecordingHandler(work)
    await send(broker, event())

    async with consuming(broker, handler):
        await until(lambda: len(handler.handled) == 1)

    assert broker.dead_letters == []


async def test_broker_that_goes_away_and_comes_back_loses_nothing(broker: MemoryBroker) -> None:
    store = MemoryProcessedEvents()
    go_on, started = asyncio.Event(), asyncio.Event()

    async def work(_: EventEnvelope) -> None:
        started.set()
        await go_on.wait()

    handler = RecordingHandler(work)
    once = IdempotentHandler(handler, store)
    sent = await send(broker, *(event("a", n) for n in range(5)))

    async with consuming(broker, once) as told:  # type: ignore[arg-type]
        await started.wait()
        broker.stop()
        go_on.set()
        await until(lambda: len(handler.handled) == 1)
        await until(lambda: any(isinstance(signal, SourceUnavailable) for signal in told))
        broker.start()
        await until(lambda: len(handler.handled) == 5)

    assert any(isinstance(signal, SourceAvailable) for signal in told)
    assert handler.handled == sent
    assert await unacknowledged(broker) == []


async def test_no_more_than_the_limit_is_in_hand(broker: MemoryBroker) -> None:
    go_on = asyncio.Event()

    async def work(_: EventEnvelope) -> None:
        await go_on.wait()

    handler = RecordingHandler(work)
    await send(broker, *(event(f"a{n}", n) for n in range(30)))
    source = broker.source()
    config = ConsumerConfig(prefetch=8, concurrency=20)

    async with asyncio.timeout(10), EventConsumer(source, [("*", handler)], config):
        await until(lambda: len(source._unacknowledged) == 8)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(source._unacknowledged) == 8
        go_on.set()
        await until(lambda: len(handler.handled) == 30)


async def test_stop_finishes_what_runs_and_gives_back_what_waits(broker: MemoryBroker) -> None:
    go_on, started = asyncio.Event(), asyncio.Event()

    async def work(_: EventEnvelope) -> None:
        started.set()
        await go_on.wait()

    handler = RecordingHandler(work)
    sent = await send(broker, event("a", 0), event("a", 1))

    async with consuming(broker, handler) as told:
        await started.wait()
        asyncio.get_running_loop().call_later(0.01, go_on.set)

    assert handler.handled == sent[:1]
    assert await unacknowledged(broker) == sent[1:]
    assert [s.handled for s in told if isinstance(s, ConsumerStopped)] == [1]


async def test_stop_does_not_wait_for_a_retry(broker: MemoryBroker) -> None:
    failed = asyncio.Event()

    async def work(_: EventEnvelope) -> None:
        failed.set()
        raise ValueError("again later")

    hours = ExponentialRetry(first=timedelta(hours=1), cap=timedelta(hours=1))
    [sent] = await send(broker, event())

    async with consuming(broker, RecordingHandler(work), retry=hours):
        await failed.wait()

    assert await unacknowledged(broker) == [sent]


def test_wrong_settings_are_told_together() -> None:
    with pytest.raises(ConfigurationError, match="concurrency .*; prefetch .*; unhandled"):
        ConsumerConfig(concurrency=0, prefetch=0, unhandled="drop")  # type: ignore[arg-type]


async def test_source_that_breaks_its_promise_ends_the_consumer(broker: MemoryBroker) -> None:
    source = broker.source()

    async def broken(_: object) -> None:
        raise RuntimeError("a bug of the source")

    source.acknowledge = broken  # type: ignore[method-assign]
    await send(broker, event())
    consumer = EventConsumer(source, [("*", RecordingHandler())])

    with pytest.raises(RuntimeError, match="a bug of the source"):
        await asyncio.wait_for(consumer.run(), 10)

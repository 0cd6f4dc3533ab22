"""The in-memory bus: order, failures, hanging handlers, concurrent use."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from outrider import (
    ConfigurationError,
    DomainEvent,
    EventEnvelope,
    EventHandler,
    EventPublisher,
    EventSubscriber,
    InMemoryEventBus,
)
from outrider.brokers import PublishFailed
from outrider.outcomes import Accepted, Refused, Unknown
from tests.support.doubles import RecordingHandler


def envelope(event_type: str = "a.happened", aggregate_id: int = 1) -> EventEnvelope:
    return DomainEvent(event_type, "a", aggregate_id, {}).to_envelope()


async def fail(_: object = None) -> None:
    raise ValueError("no")


async def hang(_: object = None) -> None:
    await asyncio.Event().wait()


async def raise_cancelled(_: object = None) -> None:
    raise asyncio.CancelledError


def test_bus_fits_the_ports() -> None:
    bus = InMemoryEventBus()

    assert isinstance(bus, EventPublisher)
    assert isinstance(bus, EventSubscriber)
    assert isinstance(RecordingHandler(), EventHandler)


@pytest.mark.parametrize(("event_type", "handler"), [("order.*", fail), (RecordingHandler(), "*")])
def test_bus_refuses_what_is_no_handler(event_type: Any, handler: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is no handler: put @handles\(OrderPlaced\)"):
        InMemoryEventBus().subscribe(event_type, handler)


async def test_published_events_can_be_looked_at() -> None:
    bus = InMemoryEventBus()
    events = [envelope("a.made", 1), envelope("a.changed", 1), envelope("a.made", 2)]

    await bus.publish_all(events)

    assert bus.published_events == events
    assert bus.events_of_type("a.made") == [events[0], events[2]]
    assert bus.events_for_aggregate("1") == events[:2]
    assert bus.has_event("a.changed")
    assert not bus.has_event("a.lost")
    assert bus.event_count == 3
    bus.clear()
    assert (bus.event_count, bus.published_events) == (0, [])


async def test_handlers_run_in_the_order_of_registration() -> None:
    bus, calls = InMemoryEventBus(), []
    for name in ("first", "second", "third"):

        async def note(_: object, name: str = name) -> None:
            calls.append(name)

        bus.subscribe("a.happened", RecordingHandler(note, name))

    await bus.publish(envelope())

    assert calls == ["first", "second", "third"]


async def test_subscribe_all_reaches_just_the_named_types() -> None:
    bus, handler = InMemoryEventBus(), RecordingHandler()
    bus.subscribe_all(["a.one", "a.two"], handler)

    await bus.publish_all([envelope("a.one"), envelope("a.two"), envelope("a.three")])

    assert [e.event_type for e in handler.handled] == ["a.one", "a.two"]


async def test_failures_are_collected_and_raised_together() -> None:
    last = RecordingHandler(name="last")
    bus = InMemoryEventBus(
        [
            ("a.happened", h)
            for h in (RecordingHandler(fail, "bad"), RecordingHandler(raise_cancelled, "odd"), last)
        ]
    )

    with pytest.raises(PublishFailed) as caught:
        await bus.publish(envelope())

    assert len(last.handled) == 1
    (both,) = caught.value.exceptions
    assert isinstance(both, ExceptionGroup)
    assert [type(e) for e in both.exceptions] == [ValueError, RuntimeError]
    assert both.exceptions[0].__notes__ == ["raised by handler bad"]
    assert bus.event_count == 1


async def test_refused_event_holds_back_its_aggregate_and_no_other() -> None:
    bus = InMemoryEventBus([("a.bad", RecordingHandler(fail, "bad"))])
    batch = [envelope("a.ok", 1), envelope("a.bad", 1), envelope("a.ok", 2), envelope("a.ok", 1)]

    with pytest.raises(PublishFailed) as caught:
        await bus.publish_all(batch)

    assert [type(o) for o in caught.value.outcomes] == [Accepted, Refused, Accepted, Unknown]
    assert bus.published_events == batch[:3]


async def test_hanging_handler_fails_at_its_time_limit_and_the_others_run() -> None:
    after = RecordingHandler(name="after")
    bus = InMemoryEventBus(handler_timeout=timedelta(milliseconds=10))
    bus.subscribe("a.happened", RecordingHandler(hang, "stuck"))
    bus.subscribe("a.happened", after)

    with pytest.raises(PublishFailed):
        await bus.publish(envelope())

    assert len(after.handled) == 1


async def test_cancelling_a_hanging_publish_leaves_the_bus_in_order() -> None:
    started, other = asyncio.Event(), RecordingHandler(name="other")

    async def start_and_hang(_: object = None) -> None:
        started.set()
        await hang()

    bus = InMemoryEventBus(
        [("a.stuck", RecordingHandler(start_and_hang, "stuck")), ("a.fine", other)]
    )
    stuck = asyncio.create_task(bus.publish(envelope("a.stuck")))
    await started.wait()

    await bus.publish(envelope("a.fine"))
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    await bus.publish(envelope("a.fine"))

    assert len(other.handled) == 2


async def test_subscribing_during_delivery_counts_from_the_next_event() -> None:
    bus, late = InMemoryEventBus(), RecordingHandler(name="late")

    async def subscribe(_: object = None) -> None:
        bus.subscribe("a.happened", late)

    bus.subscribe("a.happened", RecordingHandler(subscribe, "early"))

    await bus.publish(envelope())
    assert late.handled == []
    await bus.publish(envelope())
    assert len(late.handled) == 1


async def test_handler_may_publish_itself() -> None:
    bus = InMemoryEventBus()

    async def publish_next(_: object = None) -> None:
        await bus.publish(envelope("a.next"))

    bus.subscribe("a.happened", RecordingHandler(publish_next, "chain"))

    await bus.publish(envelope())

    assert [e.event_type for e in bus.published_events] == ["a.happened", "a.next"]


async def test_fifty_tasks_publishing_and_subscribing_lose_nothing() -> None:
    bus, everything = InMemoryEventBus(), RecordingHandler(lambda _: asyncio.sleep(0), "everything")
    bus.subscribe("a.happened", everything)
    extras = [RecordingHandler(lambda _: asyncio.sleep(0), f"extra {i}") for i in range(50)]

    async def work(number: int) -> None:
        for n in range(20):
            await bus.publish(envelope(aggregate_id=number))
            if n == 9:
                bus.subscribe("a.happened", extras[number])

    await asyncio.gather(*(work(number) for number in range(50)))

    assert bus.event_count == len(everything.handled) == 1_000
    assert {e.event_id for e in everything.handled} == {e.event_id for e in bus.published_events}
    assert all(len(extra.handled) >= 10 for extra in extras)


def test_threads_that_publish_and_subscribe_lose_nothing() -> None:
    bus, early, before = InMemoryEventBus(), envelope("a.early"), sys.getswitchinterval()
    handlers = [RecordingHandler(name=str(number)) for number in range(3_200)]

    async def work(mine: list[RecordingHandler]) -> None:
        for handler in mine:
            bus.subscribe("a.late", handler)
            await bus.publish(early)

    sys.setswitchinterval(1e-6)  # threads interrupt each other at almost every step
    try:
        with ThreadPoolExecutor(8) as threads:
            parts = [handlers[n::8] for n in range(8)]
            list(threads.map(lambda mine: asyncio.run(work(mine)), parts))
    finally:
        sys.setswitchinterval(before)
    asyncio.run(bus.publish(envelope("a.late")))

    assert bus.event_count == len(handlers) + 1
    assert sum(len(handler.handled) for handler in handlers) == len(handlers)


@pytest.mark.no_cover
async def test_hundred_events_take_milliseconds_at_most() -> None:
    """`make bench PART=codec` measures it: less than one. Here the best run of a busy machine."""
    batch, best = [envelope(aggregate_id=n) for n in range(100)], 1.0

    for _ in range(300):
        bus = InMemoryEventBus([("a.*", RecordingHandler())])
        begin = time.perf_counter()
        await bus.publish_all(batch)
        best = min(best, time.perf_counter() - begin)

    assert best < 0.01

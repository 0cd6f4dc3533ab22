"""Suspects of a consumer: a message that kills processes is found, and only that one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from outrider import ConsumerConfig, DomainEvent, EventConsumer, EventEnvelope, ExponentialRetry
from outrider.ports import Delivery
from outrider.signals import EventSuspected, Signal
from outrider.testing.conformance.events import order_of
from outrider.testing.memory_broker import MemoryBroker, MemorySource
from tests.support.doubles import RecordingHandler
from tests.support.until import until

Work = Callable[[EventEnvelope], Awaitable[Any]]
POISON = 7
LATER = ExponentialRetry(first=timedelta(hours=1), cap=timedelta(hours=1))


class MortalSource(MemorySource):
    """After `die` it does nothing more, as if its process had been killed."""

    dead = False

    def die(self) -> None:
        self.dead, self._group.active = True, None

    def _is_active(self) -> bool:
        return not self.dead and super()._is_active()

    async def close(self) -> None:
        if not self.dead:
            await super().close()

    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        if not self.dead:
            await super().adjust_crash_count(delivery, by)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(receive_wait=timedelta(milliseconds=10))


async def send(broker: MemoryBroker, count: int, aggregates: int = 1) -> list[EventEnvelope]:
    sent = [
        DomainEvent("thing.changed", "thing", f"{number % aggregates}", {"n": number}).to_envelope()
        for number in range(count)
    ]
    await broker.publisher().publish_all(sent)
    return sent


@asynccontextmanager
async def consuming(
    source: MemorySource, work: Work, **settings: Any
) -> AsyncIterator[list[Signal]]:
    told: list[Signal] = []
    retry = ExponentialRetry(first=timedelta(microseconds=1), cap=timedelta(microseconds=1))
    config = ConsumerConfig(**{"retry": retry, "grace": timedelta(0), **settings})
    handlers = [("*", RecordingHandler(work))]
    async with asyncio.timeout(10), EventConsumer(source, handlers, config, on_signal=told.append):
        yield told


async def abandon(broker: MemoryBroker, count: int) -> None:
    """A process receives so many messages and dies."""
    source = MortalSource(broker, "default")
    await source.receive(count)
    source.die()


def crash_counts(broker: MemoryBroker) -> dict[int, int]:
    return dict(+broker._group("default").crash_counts)


@pytest.mark.fault("E2")
async def test_message_that_kills_consumers_becomes_the_only_dead_letter(
    broker: MemoryBroker,
) -> None:
    sent, handled, deaths = await send(broker, 30, aggregates=3), list[EventEnvelope](), 0
    suspected: list[EventSuspected] = []

    async def live() -> None:
        nonlocal deaths
        source, died = MortalSource(broker, "default"), asyncio.Event()

        async def work(envelope: EventEnvelope) -> None:
            if envelope == sent[POISON]:
                source.die()
                died.set()
            if source.dead:
                await asyncio.Event().wait()
            handled.append(envelope)

        async with consuming(source, work) as told:
            done = {asyncio.create_task(each) for each in (died.wait(), broker.handled())}
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.cancel()
        deaths += died.is_set()
        suspected.extend(signal for signal in told if isinstance(signal, EventSuspected))

    while len(broker._group("default").acknowledged) < len(sent):
        await live()
        assert deaths < 10

    others = [each for each in sent if each != sent[POISON]]
    assert [letter.reason for letter in broker.dead_letters] == [
        "3 processes died while handling it"
    ]
    assert broker.dead_letters[0].message.data == sent[POISON].data
    assert deaths == 4, "the first death finds the suspects, three more the culprit"
    assert order_of(handled) == order_of(others)
    assert [(each.event_id, each.crashes) for each in suspected] == [
        (sent[POISON].event_id, 1),
        (sent[POISON].event_id, 2),
    ]


async def test_outages_while_a_suspect_is_handled_are_no_crashes(broker: MemoryBroker) -> None:
    await send(broker, 1)
    await abandon(broker, 1)
    outages = 0

    async def work(_: EventEnvelope) -> None:
        nonlocal outages
        if outages < 10:
            outages += 1
            broker.stop()
            asyncio.get_running_loop().call_soon(broker.start)

    async with consuming(broker.source(), work):
        await broker.handled()

    assert outages == 10
    assert broker.dead_letters == []
    assert crash_counts(broker) == {0: 1}, "no more than that of the last, acknowledged attempt"


async def test_suspect_that_comes_again_while_it_is_handled_is_judged_by_its_true_count(
    broker: MemoryBroker,
) -> None:
    await send(broker, 1)
    await abandon(broker, 1)
    broker._group("default").crash_counts[0] = 2
    source, calls = broker.source(), 0

    async def work(_: EventEnvelope) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            broker.stop()
            broker.start()
            # It is received again with the count of this attempt, which is taken back later.
            await until(lambda: bool(source._unacknowledged))

    async with consuming(source, work):
        await broker.handled()

    assert calls == 2
    assert broker.dead_letters == []


async def test_stops_while_a_suspect_is_handled_are_no_crashes(broker: MemoryBroker) -> None:
    await send(broker, 1)
    await abandon(broker, 1)

    for _ in range(5):
        started = asyncio.Event()

        async def hang(_: EventEnvelope, started: asyncio.Event = started) -> None:
            started.set()
            await asyncio.Event().wait()

        async with consuming(broker.source(), hang):
            await started.wait()
            assert crash_counts(broker) == {0: 1}

    assert crash_counts(broker) == {}
    assert broker.dead_letters == []


async def test_suspect_that_only_raises_is_retried_and_counted_once_per_attempt(
    broker: MemoryBroker,
) -> None:
    await send(broker, 1)
    await abandon(broker, 1)
    seen = []

    async def work(_: EventEnvelope) -> None:
        seen.append(crash_counts(broker))
        raise ValueError

    async with consuming(broker.source(), work, max_retries=5):
        await broker.handled()

    assert seen == [{0: 1}] * 5
    [letter] = broker.dead_letters
    assert "ValueError" in letter.reason


async def test_nothing_else_is_handled_while_a_suspect_is(broker: MemoryBroker) -> None:
    sent = await send(broker, 20, aggregates=20)
    await abandon(broker, 10)
    at_once, most = 0, dict[EventEnvelope, int]()

    async def work(envelope: EventEnvelope) -> None:
        nonlocal at_once
        at_once += 1
        await asyncio.sleep(0)
        most[envelope] = at_once
        await asyncio.sleep(0)
        at_once -= 1

    async with consuming(broker.source(), work):
        await broker.handled()

    assert {most[each] for each in sent[:10]} == {1}
    assert max(most[each] for each in sent[10:]) > 1


async def test_other_events_flow_while_a_suspect_waits_for_its_retry(broker: MemoryBroker) -> None:
    sent, handled = await send(broker, 3, aggregates=3), list[EventEnvelope]()
    await abandon(broker, 2)

    async def work(envelope: EventEnvelope) -> None:
        if envelope == sent[0]:
            raise ValueError
        handled.append(envelope)

    async with consuming(broker.source(), work, retry=LATER):
        await until(lambda: len(handled) == 2)

    assert order_of(handled) == order_of(sent[1:])
    assert crash_counts(broker) == {1: 1}, "an acknowledged one may keep its count"


async def test_messages_of_a_source_that_was_closed_are_no_suspects(broker: MemoryBroker) -> None:
    await send(broker, 3)
    closed = broker.source()
    await closed.receive(3)
    await closed.close()

    assert [each.suspect for each in await broker.source().receive(3)] == [False] * 3

"""The tasks of a relay: none of them dies alone, and none is starved without a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from outrider import (
    DomainEvent,
    EventEnvelope,
    EventPublisher,
    InMemoryEventBus,
    OutboxRelay,
    RelayConfig,
)
from outrider.errors import DatabaseUnavailable
from outrider.signals import EventLoopBlocked, StoreAvailable, StoreUnavailable
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.doubles import SignalRecorder
from tests.support.until import until

CONFIG = RelayConfig(lease=timedelta(seconds=1), poll_interval=timedelta(milliseconds=10))


@pytest.mark.fault("R9")
@pytest.mark.parametrize("duty", ["lease", "delete_published", "claim", "settle"])
async def test_task_that_dies_takes_the_relay_along_with_its_error(duty: str) -> None:
    # given
    outbox = MemoryOutboxStore()
    relay = OutboxRelay(outbox, InMemoryEventBus(), CONFIG)
    await relay.start()

    # when
    async def die(*_: object) -> Any:
        raise LookupError(duty)

    setattr(outbox, duty, die)
    outbox.record(DomainEvent("order.placed", "order", 1, {}))
    relay._loops[0].wake()
    if duty == "delete_published":  # looked for once a minute: a second relay comes to it at once
        await relay.stop()
        relay = OutboxRelay(outbox, InMemoryEventBus(), CONFIG)
        await relay.start()
    await until(lambda: relay.problem is not None)

    # then
    assert relay.problem == "OutboxRelay has ended"
    with pytest.raises(LookupError, match=duty):
        await relay.stop()


class TwoMethods:
    """A publisher with the two methods of the port, and nothing else."""

    def __init__(self) -> None:
        self.got: list[EventEnvelope] = []

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        self.got += envelopes


async def test_publisher_with_the_two_methods_of_the_port_works_in_a_relay() -> None:
    outbox, publisher = MemoryOutboxStore(), TwoMethods()
    outbox.record(DomainEvent("order.placed", "order", 1, {}))
    port: EventPublisher = publisher

    async with OutboxRelay(outbox, port, CONFIG):
        await until(lambda: len(publisher.got) == 1)

    assert isinstance(publisher, EventPublisher)


async def test_relay_publishes_batches_of_a_hundred_by_default() -> None:
    sizes: list[int] = []

    class Counting(InMemoryEventBus):
        async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
            sizes.append(len(envelopes))
            await super().publish_all(envelopes)

    outbox, bus = MemoryOutboxStore(), Counting()
    outbox.record(*(DomainEvent("order.placed", "order", number, {}) for number in range(600)))

    async with OutboxRelay(outbox, bus, RelayConfig(loops=1)):
        await until(lambda: bus.event_count == 600)

    assert sizes[0] == 100
    assert max(sizes) == 100


class Reluctant(InMemoryEventBus):
    """Takes its time to end when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.was_told, self.may_end = asyncio.Event(), asyncio.Event()

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        if self.was_told.is_set():
            await super().publish_all(envelopes)
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_told.set()
            await self.may_end.wait()
            raise


@pytest.mark.fault("R8")
async def test_renewal_that_comes_while_a_late_batch_is_given_up_does_no_harm() -> None:
    # given
    outbox, bus, cut_off = MemoryOutboxStore(), Reluctant(), asyncio.Event()
    lease, renewed = outbox.lease, asyncio.Event()

    async def lease_when_reachable(*arguments: Any) -> Any:
        if cut_off.is_set():
            await bus.was_told.wait()
            renewed.set()
        return await lease(*arguments)

    outbox.lease = lease_when_reachable  # type: ignore[method-assign]
    outbox.record(DomainEvent("order.placed", "order", 1, {}))
    async with OutboxRelay(outbox, bus, CONFIG) as relay:
        # when
        cut_off.set()
        await renewed.wait()
        await asyncio.sleep(0.05)  # the answer reaches the worker
        bus.may_end.set()

        # then
        await until(lambda: bus.event_count == 1 or relay.problem is not None)
        assert relay.problem is None


@pytest.mark.fault("R8")
async def test_relay_whose_loop_was_blocked_says_so_and_renews_before_it_publishes() -> None:
    # given
    outbox, bus, order = MemoryOutboxStore(), InMemoryEventBus(), list[str]()
    signals = SignalRecorder()
    noting(outbox, "lease", order)
    noting(bus, "publish_all", order)
    async with OutboxRelay(outbox, bus, CONFIG, on_signal=signals):
        outbox.record(DomainEvent("order.placed", "order", 1, {}))
        await until(lambda: bus.event_count == 1)

        # when
        outbox.record(DomainEvent("order.placed", "order", 2, {}))
        order.clear()
        time.sleep(CONFIG.lease.total_seconds())  # noqa: ASYNC251 - the very fault
        await until(lambda: bus.event_count == 2)

    # then
    assert order.index("lease") < order.index("publish_all")
    assert len(signals.of(EventLoopBlocked)) == 1


def noting(part: Any, name: str, order: list[str]) -> None:
    work = getattr(part, name)

    async def wrapped(*arguments: Any) -> Any:
        order.append(name)
        return await work(*arguments)

    setattr(part, name, wrapped)


@pytest.mark.fault("D2")
async def test_database_that_stays_away_is_told_once_until_it_is_back() -> None:
    # given
    outbox, told = MemoryOutboxStore(), list[type]()
    lease, failures = outbox.lease, 0
    away = True

    async def lease_unless_away(*arguments: Any) -> Any:
        nonlocal failures
        if away and len(relay._lanes.tokens):
            failures += 1
            raise DatabaseUnavailable("away")
        return await lease(*arguments)

    outbox.lease = lease_unless_away  # type: ignore[method-assign]
    relay = OutboxRelay(
        outbox, InMemoryEventBus(), CONFIG, on_signal=lambda signal: told.append(type(signal))
    )
    async with relay:
        # when
        await until(lambda: failures >= 4 and not relay._lanes.are_valid)

        # then
        states = [kind for kind in told if kind in (StoreUnavailable, StoreAvailable)]
        assert states == [StoreUnavailable]
        away = False
        await until(lambda: StoreAvailable in told)

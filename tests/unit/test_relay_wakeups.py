"""A wake-up says where to look; what it does not say is found none the less."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta

from outrider import DomainEvent, InMemoryEventBus, OutboxRelay, RelayConfig
from outrider.lanes import encode_lanes
from outrider.outcomes import ClaimedEvent
from outrider.signals import BatchPublished, Signal
from outrider.testing.memory_store import MemoryOutboxStore


class Quiet(MemoryOutboxStore):
    """Wakes nobody up by itself, and notes where was looked."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: list[set[int]] = []

    async def open(self, wake: Callable[[str], None], /) -> str:
        self.wake = wake
        return "quiet"

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        self.looked.append(set(lanes))
        return await super().claim(lanes, limit)

    def record_in_a_lane(self, number: int) -> int:
        (row,) = self.record(DomainEvent("thing.changed", "thing", number, {}))
        return row.event.lane


class Heard:
    """The signals of a relay, one by one."""

    def __init__(self) -> None:
        self._signals = asyncio.Queue[Signal]()
        self.hear = self._signals.put_nowait

    async def until(self, kind: type[Signal]) -> None:
        async with asyncio.timeout(60):
            while not isinstance(await self._signals.get(), kind):
                pass


@asynccontextmanager
async def relaying(outbox: Quiet, poll: float, batch: int = 100) -> AsyncIterator[Heard]:
    heard, interval = Heard(), timedelta(seconds=poll)
    config = RelayConfig(poll_interval=interval, loops=1, batch_size=batch)
    async with OutboxRelay(outbox, InMemoryEventBus(), config, on_signal=heard.hear):
        await idle()
        outbox.looked.clear()
        yield heard


async def idle() -> None:
    """Nothing here waits for more than its turn, so that some turns are enough."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_relay_looks_only_where_it_was_told_and_not_twice() -> None:
    # given
    outbox = Quiet()
    async with relaying(outbox, poll=600) as heard:
        # when
        lane = outbox.record_in_a_lane(1)
        outbox.wake(encode_lanes([lane]))
        await heard.until(BatchPublished)
        await idle()

        # then
        assert outbox.looked == [{lane}]


async def test_batch_that_may_not_be_all_is_followed_by_a_look_everywhere() -> None:
    # given
    outbox = Quiet()
    async with relaying(outbox, poll=600, batch=1) as heard:
        # when
        lane = outbox.record_in_a_lane(1)
        outbox.record_in_a_lane(1)
        outbox.wake(encode_lanes([lane]))
        await heard.until(BatchPublished)
        await heard.until(BatchPublished)

        # then
        assert [len(looked) for looked in outbox.looked[:2]] == [1, 64]


async def test_lost_wake_up_is_found_although_others_go_on_without_end() -> None:
    # given
    outbox = Quiet()
    async with relaying(outbox, poll=0.05) as heard:
        lost = outbox.record_in_a_lane(1)
        other = next(lane for lane in range(64) if lane != lost)

        async def wake_without_end() -> None:
            while True:
                outbox.wake(encode_lanes([other]))
                await asyncio.sleep(0)

        # when
        waking = asyncio.create_task(wake_without_end())
        await heard.until(BatchPublished)
        waking.cancel()

        # then
        assert {other} in outbox.looked

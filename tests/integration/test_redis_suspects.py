"""An entry that kills its process: it alone becomes a dead letter, in order and out of order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from outrider import EventEnvelope
from outrider.brokers.redis import RedisConfig, RedisPublisher, RedisSource
from outrider.ports import Delivery
from outrider.testing.conformance.crash import crash
from outrider.testing.conformance.events import envelopes_of, events, order_of
from outrider.testing.conformance.receiving import receive_some
from outrider.testing.services import Services
from tests.support.processes.deadly_consumer import consume_until_it_lives

GROUP = "billing"
CONFIG = RedisConfig(takeover_after=timedelta(seconds=1))


class Stream:
    """One stream of the shared server, and a plain client beside it."""

    def __init__(self, url: str, client: Redis) -> None:
        self.url, self.client, self.name = url, client, f"events.{uuid4().hex}"

    def source(self, *, ordered: bool = True) -> RedisSource:
        return RedisSource(self.url, self.name, group=GROUP, ordered=ordered, config=CONFIG)

    async def send(self, *envelopes: EventEnvelope) -> None:
        async with RedisPublisher(self.url, stream=self.name) as publisher:
            await publisher.publish_all(envelopes)

    async def end_lease(self) -> None:
        """As if `takeover_after` were over."""
        await self.client.delete(f"{self.name}.{GROUP}.lease")
        for row in await self.client.xpending_range(self.name, GROUP, "-", "+", 100):
            who = (self.name, GROUP, row["consumer"], 0, [row["message_id"]])
            await self.client.xclaim(*who, idle=60_000, justid=True)

    async def receive(self, count: int) -> list[Delivery]:
        """With a source that is closed before it has acknowledged anything."""
        async with self.source() as source:
            return await receive_some(source, count)


@pytest.fixture
async def stream(services: Services) -> AsyncIterator[Stream]:
    async with Redis.from_url(services.redis.url) as client:
        yield Stream(services.redis.url, client)


@pytest.mark.parametrize("ordered", [True, False])
async def test_entry_that_kills_its_process_is_the_only_dead_letter(
    stream: Stream, *, ordered: bool
) -> None:
    batch = events(30, "a", "b", "c")
    poison = batch[7]
    await stream.send(*batch)

    deaths, handled = await consume_until_it_lives(
        lambda: stream.source(ordered=ordered), batch, poison, stream.end_lease
    )

    assert deaths == 4, "once before anybody suspects it, then three times alone"
    innocents = [each for each in batch if each is not poison]
    assert order_of(handled) == order_of(innocents) if ordered else set(handled) == set(innocents)
    [(_, letter)] = await stream.client.xrange(f"{stream.name}.dlq")
    assert letter[b"ce-id"].decode() == str(poison.event_id)
    assert letter[b"dead-letter-reason"] == b"3 processes died while handling it"
    assert await stream.client.hgetall(f"{stream.name}.{GROUP}.crashes") == {}, "all is cleared"


async def test_what_a_closed_source_left_is_no_suspect(stream: Stream) -> None:
    await stream.send(*events(3))
    await stream.receive(3)

    again = await stream.receive(3)

    assert [each.suspect for each in again] == [False] * 3


async def test_process_that_lost_its_lease_suspects_nothing_when_it_gets_it_back(
    stream: Stream,
) -> None:
    await stream.send(*events(3))
    async with stream.source() as source:
        [held, *_] = await receive_some(source, 3)
        await source.adjust_crash_count(held)

        await stream.end_lease()
        assert await source.receive(3) == []
        await source.adjust_crash_count(held, -1)
        again = await receive_some(source, 3)

    assert held.lost
    assert [(each.suspect, each.crash_count) for each in again] == [(False, 0)] * 3
    assert not await stream.client.exists(f"{stream.name}.{GROUP}.crashes")


async def test_suspects_stay_suspects_when_the_connection_is_lost(stream: Stream) -> None:
    await stream.send(*events(3))
    dead = stream.source()
    await dead.open()
    await receive_some(dead, 3)
    await dead._pool.close()
    await stream.end_lease()

    async with stream.source() as source:
        first = await receive_some(source, 1)
        await stream.end_lease()
        await source.receive(1)
        again = await receive_some(source, 3)

    assert [each.suspect for each in first + again] == [True] * 4
    await dead.close()


async def test_suspects_stay_suspects_when_a_living_source_closes(stream: Stream) -> None:
    await stream.send(*events(3))
    await crash(stream.source, 3, 0, [1])
    await stream.end_lease()

    first, second = await stream.receive(3), await stream.receive(3)

    assert [(each.suspect, each.crash_count) for each in first + second] == [
        *[(True, 1), (True, 0), (True, 0)] * 2
    ]


async def test_crash_that_is_counted_again_after_a_lost_reply_counts_once(stream: Stream) -> None:
    await stream.send(*events(1))
    async with stream.source() as source:
        [delivery] = await receive_some(source, 1)
        await source.adjust_crash_count(delivery)
        delivery.crash_count = 0  # as if the reply had been lost

        await source.adjust_crash_count(delivery)

        stored = await stream.client.hget(f"{stream.name}.{GROUP}.crashes", delivery.message[0])  # type: ignore[misc]
    assert stored == b"1"
    assert envelopes_of([delivery])

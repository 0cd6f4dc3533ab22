"""Entries that leave a stream before they are handled are told with range and count, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from outrider.brokers.redis import RedisPublisher, RedisSource
from outrider.consumer.losses import Loss
from outrider.ports import Delivery
from outrider.testing.conformance.events import envelopes_of, events
from outrider.testing.conformance.receiving import receive_some
from outrider.testing.services import Services


class Stream:
    """One stream of the shared server, read by one source."""

    def __init__(self, url: str, client: Redis, source: RedisSource) -> None:
        self.url, self.client, self.source = url, client, source
        self.name = source._group.stream
        self.told: list[Loss] = []

    async def send(self, count: int) -> list[str]:
        """The ids of the new entries."""
        async with RedisPublisher(self.url, stream=self.name) as publisher:
            await publisher.publish_all(events(count))
        found = await self.client.xrange(self.name)
        return [entry.decode() for entry, _ in found][-count:]

    async def trim(self, keep: int) -> None:
        await self.client.xtrim(self.name, maxlen=keep, approximate=False)

    async def receive(self, count: int) -> list[Delivery]:
        found = await receive_some(self.source, count)
        self.told += self.source.take_losses()
        return found

    async def handle(self, count: int) -> None:
        for delivery in await self.receive(count):
            await self.source.acknowledge(delivery)

    async def reopen(self) -> None:
        await self.source.close()
        await self.source.open()


@pytest.fixture(params=[True, False], ids=["ordered", "shared"])
async def stream(services: Services, request: pytest.FixtureRequest) -> AsyncIterator[Stream]:
    url, name = services.redis.url, f"events.{uuid4().hex}"
    source = RedisSource(url, name, group="billing", ordered=request.param)
    async with Redis.from_url(url) as client, source:
        yield Stream(url, client, source)


async def test_entries_that_were_trimmed_before_they_were_read_are_told(stream: Stream) -> None:
    sent = await stream.send(10)
    await stream.handle(2)

    await stream.trim(3)
    found = await stream.receive(3)

    assert [each.message[0].decode() for each in found] == sent[7:]
    [loss] = stream.told
    assert (loss.first, loss.last, loss.count) == (f"({sent[1]}", f"({sent[7]}", 5)
    assert "max_length" in loss.reason


async def test_each_loss_is_told_once_with_its_own_count(stream: Stream) -> None:
    for lost in (4, 3, 2):
        await stream.send(lost + 2)
        await stream.trim(2)
        await stream.handle(1)
        await stream.reopen()
        await stream.handle(1)

    assert [loss.count for loss in stream.told] == [4, 3, 2]


async def test_stream_that_was_emptied_is_told_with_the_next_entry(stream: Stream) -> None:
    await stream.send(6)
    await stream.trim(0)
    await stream.send(1)

    await stream.handle(1)

    assert [loss.count for loss in stream.told] == [6]


async def test_trimming_what_was_read_is_no_loss(stream: Stream) -> None:
    for _ in range(3):
        await stream.send(5)
        await stream.handle(5)
        await stream.trim(0)

    assert stream.told == []


async def test_entries_older_than_the_group_are_no_loss_of_it(stream: Stream) -> None:
    await stream.send(6)
    await stream.trim(2)
    await stream.client.xgroup_destroy(stream.name, "billing")
    await stream.reopen()

    await stream.handle(2)

    assert stream.told == []


async def test_pending_entries_that_were_deleted_are_told(services: Services) -> None:
    url, name = services.redis.url, f"events.{uuid4().hex}"
    source = RedisSource(url, name, group="billing")
    async with Redis.from_url(url) as client, source:
        stream = Stream(url, client, source)
        sent = await stream.send(6)
        await stream.receive(6)
        await stream.reopen()

        await stream.trim(1)
        found = await stream.receive(1)

    assert len(envelopes_of(found)) == 1
    [loss] = stream.told
    assert (loss.first, loss.last, loss.count) == (sent[0], sent[4], 5)
    assert "before they were acknowledged" in loss.reason


@pytest.mark.parametrize("ordered", [True, False])
async def test_deleted_entries_that_another_name_held_are_told(
    services: Services, *, ordered: bool
) -> None:
    url, name = services.redis.url, f"events.{uuid4().hex}"
    source = RedisSource(url, name, group="billing", ordered=ordered)
    async with Redis.from_url(url) as client, source:
        stream = Stream(url, client, source)
        sent = await stream.send(4)
        await client.xreadgroup("billing", "another", {name: ">"}, count=3)
        if not ordered:
            await client.xclaim(name, "billing", "another", 0, sent[:3], idle=60_000)

        await stream.trim(1)
        while not await source.receive(10):
            pass

    assert [(loss.first, loss.last, loss.count) for loss in source.take_losses()] == [
        (sent[0], sent[2], 3)
    ]

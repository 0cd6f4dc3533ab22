"""A record that kills its process: it alone becomes a dead letter, and only deaths count."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from outrider import EventEnvelope
from outrider.brokers.kafka import KafkaConfig, KafkaSource
from outrider.ports import Delivery
from outrider.testing.conformance.crash import crash
from outrider.testing.conformance.events import events, order_of
from outrider.testing.services import Services
from tests.support.brokers.kafka_topics import (
    administering,
    expel_members,
    publishing,
    records_in,
    unique,
)
from tests.support.processes.deadly_consumer import consume_until_it_lives

CONFIG = KafkaConfig(partitions=2, takeover_after=timedelta(seconds=6))


class Topic:
    """A topic with two partitions, and a group."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, unique()

    def source(self) -> KafkaSource:
        return KafkaSource(self.url, self.name, group=self.name, config=CONFIG)

    async def send(self, *batch: EventEnvelope) -> None:
        async with publishing(self.url, self.name, CONFIG) as publisher:
            await publisher.publish_all(batch)

    async def expel(self) -> None:
        await expel_members(self.url, self.name)

    async def crash(self, receive: int, adjust: int = 0) -> None:
        await crash(self.source, receive, 0, [1] * adjust)
        await self.expel()

    async def metadata(self) -> list[dict[str, object]]:
        async with administering(self.url) as admin:
            offsets = await admin.list_consumer_group_offsets(self.name)
        return [json.loads(offsets[place].metadata) for place in sorted(offsets)]


@pytest.fixture
def topic(services: Services) -> Topic:
    return Topic(services.kafka.url)


async def receive(source: KafkaSource, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await source.receive(count - len(found))
    return found


async def test_record_that_kills_its_process_is_the_only_dead_letter(topic: Topic) -> None:
    batch = events(30, "a", "b", "c", "d")
    poison = batch[7]
    await topic.send(*batch)

    deaths, handled = await consume_until_it_lives(topic.source, batch, poison, topic.expel)

    assert deaths == 4, "once before anybody suspects it, then three times alone"
    assert order_of(handled) == order_of([each for each in batch if each is not poison])
    [letter] = await records_in(topic.url, f"{topic.name}.dlq")
    headers = dict(letter.headers)
    assert headers["ce_id"].decode() == str(poison.event_id)
    assert headers["dead-letter-reason"] == b"3 processes died while handling it"
    assert [found.keys() for found in await topic.metadata()] == [{"topic"}] * 2, "all is cleared"


async def test_what_a_closed_source_left_is_no_suspect(topic: Topic) -> None:
    await topic.send(*events(4, "a", "b"))
    async with topic.source() as source:
        new = await receive(source, 4)
        await source.adjust_crash_count(new[0])

    async with topic.source() as source:
        again = await receive(source, 4)

    assert [(each.suspect, each.crash_count) for each in new[1:] + again] == [(False, 0)] * 7


async def test_suspects_stay_suspects_when_a_living_source_releases_them(topic: Topic) -> None:
    await topic.send(*events(4, "a", "b"))
    await topic.crash(4, adjust=2)

    found = []
    for _ in range(2):
        async with topic.source() as source:
            found += await receive(source, 4)
    await topic.send(*events(1))
    async with topic.source() as source:
        for delivery in await receive(source, 4):
            await source.acknowledge(delivery)
        [new] = await receive(source, 1)

    assert [each.suspect for each in found] == [True] * 8
    assert sorted(each.crash_count for each in found) == [0] * 6 + [2] * 2
    assert not new.suspect, "it was not there yet when the process died"


async def test_all_that_a_dead_process_may_have_held_is_suspected_and_no_more(
    topic: Topic,
) -> None:
    await topic.send(*events(9))
    dead, held = topic.source(), list[Delivery]()
    await dead.open()
    async with asyncio.timeout(60):
        while len(held) < 6:
            found = await dead.receive(2)
            held += found
            for delivery in found if held[2:] else ():
                await dead.acknowledge(delivery)
    dead._drop(dead._consumer)
    await topic.expel()

    async with topic.source() as source:
        again = await receive(source, 2)
        again += await receive(source, 7)

    assert [each.suspect for each in again] == [True] * 6 + [False] * 3
    await dead.close()


async def test_lost_connection_is_no_crash(topic: Topic) -> None:
    await topic.send(*events(2))
    await topic.crash(2)
    async with topic.source() as source:
        [held, _] = await receive(source, 2)
        await source.adjust_crash_count(held)

        source._drop(source._consumer)
        await topic.expel()
        again = await receive(source, 2)
        await source.adjust_crash_count(held, -1)

    assert held.lost
    assert [each.crash_count for each in again] == [0, 0]
    [found] = [each for each in await topic.metadata() if "first_innocent" in each]
    assert "crashes" not in found

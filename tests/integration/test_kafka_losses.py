"""Records that leave a topic before they are handled are told, and a new topic is read whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import TopicPartition

from outrider import EventEnvelope
from outrider.brokers.kafka import KafkaSource, source
from outrider.consumer.losses import Loss
from outrider.ports import Delivery
from outrider.testing.services import Services
from tests.support.brokers.events import event
from tests.support.brokers.kafka_topics import (
    ONE,
    commit_position,
    committed_position,
    create,
    expire,
    publishing,
    recreate,
    unique,
)


class Topic:
    """A topic with one partition, and one source of it."""

    def __init__(self, url: str) -> None:
        self.url, self.name, self.told = url, unique(), list[Loss]()
        self.source = KafkaSource(url, self.name, group=self.name, config=ONE)

    async def send(self, count: int) -> list[EventEnvelope]:
        batch = [event("a") for _ in range(count)]
        async with publishing(self.url, self.name, ONE) as publisher:
            await publisher.publish_all(batch)
        return batch

    async def receive(self, count: int) -> list[Delivery]:
        found: list[Delivery] = []
        async with asyncio.timeout(30):
            while len(found) < count:
                found += await self.source.receive(count - len(found))
                self.told += self.source.take_losses()
        return found

    async def handle(self, count: int) -> list[EventEnvelope | None]:
        found = await self.receive(count)
        for delivery in found:
            await self.source.acknowledge(delivery)
        return [delivery.envelope for delivery in found]

    @property
    def ranges(self) -> list[tuple[str, str, int | None]]:
        """What was told, without the name of the topic."""
        cut = len(self.name) + 1
        return [(loss.first[cut:], loss.last[cut:], loss.count) for loss in self.told]


@pytest.fixture
async def topic(services: Services) -> AsyncIterator[Topic]:
    topic = Topic(services.kafka.url)
    await create(topic.url, topic.name)
    async with topic.source:
        yield topic


async def test_records_that_expired_while_nobody_received_are_told_once(topic: Topic) -> None:
    batch = await topic.send(10)
    await topic.handle(2)
    await topic.source.close()

    await expire(topic.url, topic.name, 7)
    for _ in range(2):
        await topic.source.open()
        received = await topic.handle(1)
        await topic.source.close()

    assert received == batch[8:9]
    assert topic.ranges == [("0/2", "0/6", 5)]


async def test_records_that_expired_before_a_new_group_handled_any_are_told(topic: Topic) -> None:
    await topic.send(3)
    await topic.receive(3)
    await topic.source.close()

    await expire(topic.url, topic.name, 3)
    await topic.send(1)
    await topic.source.open()
    await topic.handle(1)

    assert topic.ranges == [("0/0", "0/2", 3)]


async def test_records_that_expire_under_a_running_source_are_told(topic: Topic) -> None:
    batch = await topic.send(8)
    [held, _] = await topic.receive(2)

    await expire(topic.url, topic.name, 5)
    consumer = topic.source._consumer
    assert consumer is not None
    consumer.seek(TopicPartition(topic.name, 0), 2)  # drops what was fetched ahead
    received = await topic.receive(3)

    assert [each.envelope for each in received] == batch[5:]
    assert topic.ranges == [("0/2", "0/4", 3)]
    assert not held.lost, "it was received before"


async def test_topic_that_grew_past_the_old_offset_is_read_from_its_beginning(
    topic: Topic,
) -> None:
    await topic.send(3)
    await topic.handle(3)
    await topic.source.close()
    position = await committed_position(topic.url, topic.name, topic.name)

    await recreate(topic.url, topic.name)
    batch = await topic.send(8)
    # Kafka deletes the commits of a deleted topic, but a process may commit later.
    await commit_position(topic.url, topic.name, topic.name, position)
    topic.source = KafkaSource(topic.url, topic.name, group=topic.name, config=ONE)
    async with topic.source:
        received = await topic.handle(8)

    assert received == batch
    assert [(first, count) for first, _, count in topic.ranges] == [("0/3", None)]
    assert "created again" in topic.told[0].reason


async def test_topic_that_is_created_again_under_a_running_source_is_told_and_read_whole(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_TOPIC_CHECK_INTERVAL_S", 0.0)
    await topic.send(3)
    [*_, held] = await topic.receive(3)

    await recreate(topic.url, topic.name)
    batch = await topic.send(8)
    received: list[EventEnvelope | None] = []
    async with asyncio.timeout(30):
        while not set(batch) <= set(received):
            received += await topic.handle(1)

    assert [(first, count) for first, _, count in topic.ranges] == [("0/0", None)]
    assert [each for each in received if each in batch][-8:] == batch
    assert held.lost

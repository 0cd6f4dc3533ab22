"""Topics of a real Kafka, read by aiokafka directly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.protocol.group import LeaveGroupRequest

from outrider import EventEnvelope
from outrider.brokers import PublishFailed
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher
from outrider.outcomes import ACCEPTED, Outcome

ONE = KafkaConfig(partitions=1)
FOUR = KafkaConfig(partitions=4)


def unique(what: str = "test") -> str:
    return f"{what}.{uuid4().hex}"


def servers(url: str) -> str:
    return url.removeprefix("kafka://")


@asynccontextmanager
async def administering(url: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers(url))
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(url: str, topic: str, partitions: int = 1, **settings: str) -> None:
    new = NewTopic(topic, partitions, 1, topic_configs=settings)
    async with administering(url) as admin:
        await admin.create_topics([new])


@asynccontextmanager
async def publishing(
    url: str, topic: str, config: KafkaConfig = FOUR
) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(url, topic, config=config)
    try:
        yield publisher
    finally:
        await publisher.close()


async def send_raw(
    url: str, topic: str, value: bytes | None, key: bytes = b"k", headers: Iterable = ()
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers(url)) as producer:
        await producer.send_and_wait(topic, value, key, headers=list(headers))


async def outcomes_of(publisher: KafkaPublisher, batch: list[EventEnvelope]) -> list[Outcome]:
    try:
        await publisher.publish_all(batch)
    except PublishFailed as failed:
        return list(failed.outcomes)  # type: ignore[arg-type]
    return [ACCEPTED] * len(batch)


async def settle(publisher: KafkaPublisher, batch: list[EventEnvelope]) -> int:
    """Publish until all events are accepted, as a relay does; return the number of calls."""
    calls, left = 0, batch
    async with asyncio.timeout(60):
        while left:
            outcomes = await outcomes_of(publisher, left)
            left = [e for e, o in zip(left, outcomes, strict=True) if o is not ACCEPTED]
            calls += 1
            await asyncio.sleep(0.05 if left else 0)
    return calls


def kinds(outcomes: Iterable[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


async def records_in(url: str, topic: str) -> list[ConsumerRecord]:
    """All records of the topic, partition by partition."""
    found: list[ConsumerRecord] = []
    async with AIOKafkaConsumer(bootstrap_servers=servers(url)) as consumer, asyncio.timeout(60):
        numbers = await consumer._client._wait_on_metadata(topic)
        places = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        for place, end in (await consumer.end_offsets(places)).items():
            while await consumer.position(place) < end:
                batch = await consumer.getmany(place, timeout_ms=1000)
                found += batch.get(place, [])
    return found


async def committed(url: str, group: str, topic: str) -> dict[int, int]:
    """The committed offset of the group in each partition."""
    async with administering(url) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
    return {
        place.partition: found.offset
        for place, found in offsets.items()
        if place.topic == topic and found.offset >= 0
    }


async def committed_position(url: str, group: str, topic: str) -> tuple[int, str]:
    """Offset and metadata of the commit of partition 0."""
    async with administering(url) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
    return tuple(offsets[TopicPartition(topic, 0)])


async def commit_position(url: str, group: str, topic: str, position: tuple[int, str]) -> None:
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=servers(url), group_id=group, enable_auto_commit=False
    ) as consumer:
        consumer.assign([place])
        await consumer.commit({place: position})


async def expire(url: str, topic: str, before: int) -> None:
    """As if the oldest records of partition 0 had exceeded their retention."""
    async with administering(url) as admin:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})


async def recreate(url: str, topic: str) -> None:
    """Delete the topic and create it with one partition."""
    async with administering(url) as admin, asyncio.timeout(30):
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        while topic not in await admin.list_topics():
            await admin.create_topics([NewTopic(topic, 1, 1)])


async def expel_members(url: str, group: str) -> None:
    """As if the sessions of all members, which died, were over."""
    async with administering(url) as admin:
        coordinator = await admin.find_coordinator(group)
        [answer] = await admin.describe_consumer_groups([group], coordinator)
        for member in answer.to_object()["groups"][0]["members"]:
            leave = LeaveGroupRequest(group, member["member_id"])
            await admin._send_request(leave, coordinator)


def order_of(records: list[ConsumerRecord]) -> dict[str, list[str]]:
    """Ids per aggregate, in the order of their first delivery."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        found[record.key.decode()].setdefault(dict(record.headers)["ce_id"].decode())
    return {key: list(ids) for key, ids in found.items()}


def order_sent(batch: list[EventEnvelope]) -> dict[str, list[str]]:
    sent = defaultdict(list)
    for envelope in batch:
        sent[envelope.aggregate_id].append(str(envelope.event_id))
    return sent

"""`outrider doctor` finds groups whose next messages the broker has deleted."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from redis.asyncio import Redis

from outrider.brokers.kafka import KafkaPublisher, KafkaSource
from outrider.brokers.redis import RedisConfig, RedisPublisher, RedisSource
from outrider.ports import CheckResult, DurabilityCheck
from outrider.testing.conformance.events import events
from outrider.testing.conformance.receiving import receive_some
from outrider.testing.services import Services
from tests.support.brokers.kafka_topics import ONE, create, expire, unique
from tests.support.brokers.redis_users import with_documented_rights


async def groups(publisher: DurabilityCheck) -> dict[str, CheckResult]:
    found = await publisher.check_durability()
    return {each.subject: each for each in found if each.subject.startswith("group")}


async def test_redis_group_with_trimmed_entries_is_found(services: Services) -> None:
    url, name = services.redis.url, f"events.{uuid4().hex}"
    config = RedisConfig(takeover_after=timedelta(seconds=1))
    async with (
        RedisPublisher(url, name) as publisher,
        RedisSource(url, name, group="billing", config=config) as source,
        Redis.from_url(url) as client,
    ):
        assert (await groups(publisher))["group billing"].verdict == "fine"
        await publisher.publish_all(events(10))
        await receive_some(source, 3)
        assert (await groups(publisher))["group billing"].verdict == "fine"
        await client.xtrim(name, maxlen=2, approximate=False)
        some = (await groups(publisher))["group billing"]
        await client.xtrim(name, maxlen=0, approximate=False)
        all_ = (await groups(publisher))["group billing"]

    assert (some.verdict, "at least 8 entries" in some.text) == ("warning", True)
    assert (all_.verdict, "at least 10 entries" in all_.text) == ("warning", True)
    assert "max_length" in some.cure


async def test_redis_stream_without_groups_or_without_permission_is_said_to_be_so(
    services: Services,
) -> None:
    url, name = services.redis.url, f"events.{uuid4().hex}"
    async with Redis.from_url(url) as client:
        theirs = await with_documented_rights("relay", url, client, name)
    for stream in (name, "events.{aggregate_id}"):
        async with RedisPublisher(url, stream) as publisher:
            assert await groups(publisher) == {}

    async with RedisPublisher(theirs, name) as publisher:
        [hidden] = (await groups(publisher)).values()

    assert (hidden.verdict, hidden.cure) == ("warning", "allow XINFO")


async def test_kafka_group_with_expired_records_is_found(services: Services) -> None:
    url, topic, group = services.kafka.url, unique(), unique("billing")
    await create(url, topic)
    async with KafkaPublisher(url, topic, config=ONE) as publisher:
        await publisher.publish_all(events(10))
        async with KafkaSource(url, topic, group=group, config=ONE) as source:
            for delivery in await receive_some(source, 3):
                await source.acknowledge(delivery)
        before = await groups(publisher)
        await expire(url, topic, 7)
        after = (await groups(publisher))[f"group {group}"]

    assert before.keys() == {f"group {group}"}, "other groups do not read this topic"
    assert before[f"group {group}"].verdict == "fine"
    assert after.verdict == "warning"
    assert f"at least 4 records were lost from {topic}/0/3 on" in after.text
    assert "outrider replay" in after.cure

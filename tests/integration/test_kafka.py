"""KafkaPublisher on a real broker: what arrives, what is refused, what is explained."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from aiokafka.record.memory_records import MemoryRecords
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from outrider import BrokerUnavailable, ConfigurationError, EventEnvelope, EventMetadata
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher
from outrider.outcomes import Accepted, Deferred, Refused, Unknown
from outrider.testing.services import Services
from outrider.testing.services.servers.server import Server
from tests.support.brokers.events import event
from tests.support.brokers.kafka_topics import (
    FOUR,
    ONE,
    administering,
    create,
    kinds,
    order_of,
    order_sent,
    outcomes_of,
    publishing,
    records_in,
    send_raw,
    settle,
    unique,
)

IMPATIENT = KafkaConfig(
    partitions=2, publish_timeout=timedelta(seconds=2), connect_timeout=timedelta(seconds=2)
)


@pytest.fixture
def url(services: Services) -> str:
    return services.kafka.url


@pytest.fixture
def victim(services: Services) -> Server:
    """A broker of our own, whose files can be read and which can be hurt."""
    return services.victim("kafka")


async def test_record_carries_key_and_cloudevents_headers(url: str) -> None:
    topic = unique()
    sent = event("bestellung-ä→ß", data='{"text":"ünï"}'.encode()).with_metadata(
        EventMetadata(correlation_id="c-1", user_id="ü-7")
    )

    async with publishing(
        url, topic, KafkaConfig(partitions=1, cloudevents_source="/shop")
    ) as publisher:
        await publisher.publish(sent)
    [found] = await records_in(url, topic)

    assert (found.key, found.value) == ("bestellung-ä→ß".encode(), sent.data)
    assert dict(found.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": str(sent.event_id).encode(),
        "ce_source": b"/shop",
        "ce_type": b"order.placed",
        "ce_subject": "bestellung-ä→ß".encode(),
        "ce_time": sent.occurred_at.isoformat().encode(),
        "content-type": b"application/json",
        "ce_aggregatetype": b"order",
        "ce_eventversion": b"1",
        "ce_correlationid": b"c-1",
        "ce_userid": "ü-7".encode(),
    }


async def test_official_cloudevents_sdk_reads_the_record(url: str) -> None:
    topic = unique()
    sent = event("o-1", data=b'{"total":3}')

    async with publishing(url, topic) as publisher:
        await publisher.publish(sent)
    [found] = await records_in(url, topic)

    message = KafkaMessage(dict(found.headers), found.key, found.value)
    read = from_binary(message, JSONFormat())
    assert (read.get_id(), read.get_type()) == (str(sent.event_id), "order.placed")
    assert (read.get_subject(), read.get_extension("partitionkey")) == ("o-1", "o-1")
    assert read.get_time() == sent.occurred_at
    assert read.get_data() == {"total": 3}


async def test_key_has_the_partition_that_other_clients_give_it(url: str) -> None:
    topic = unique()
    keys = [f"order-{number}" for number in range(20)]

    async with publishing(url, topic, KafkaConfig(partitions=7)) as publisher:
        await publisher.publish_all([event(key) for key in keys])
    for key in keys:
        await send_raw(url, topic, b"{}", key.encode())
    partitions = defaultdict(set)
    for record in await records_in(url, topic):
        partitions[record.key].add(record.partition)

    assert len(partitions) == len(keys)
    assert {len(places) for places in partitions.values()} == {1}
    assert len(set.union(*partitions.values())) > 1


async def test_batch_is_one_idempotent_request_for_each_partition(victim: Server) -> None:
    topic = unique()
    batches = [[event(f"a{number % 97}") for number in range(500)] for _ in range(3)]

    async with publishing(victim.url, topic, ONE) as publisher:
        for batch in batches:
            await publisher.publish_all(batch)

    found = list(stored_batches(victim.folder, topic))
    assert [count for _, _, count in found] == [500, 500, 500]
    assert [sequence for _, sequence, _ in found] == [0, 500, 1000]
    [producer] = {producer for producer, _, _ in found}
    assert producer >= 0, "a producer without idempotence has no id"


def stored_batches(folder: Path, topic: str) -> Iterator[tuple[int, int, int]]:
    """Producer, first sequence number and number of records of each, from the broker's file."""
    [log] = (folder / "data" / f"{topic}-0").glob("*.log")
    stored = MemoryRecords(log.read_bytes())
    while stored.has_next():
        batch = stored.next_batch()
        yield batch.producer_id, batch.base_sequence, len(list(batch))


async def test_calls_side_by_side_keep_every_aggregate_in_order(url: str) -> None:
    topic = unique()
    batch = [event(f"{number % 2}-a{number % 14}") for number in range(2_000)]
    halves = [[e for e in batch if e.aggregate_id.startswith(half)] for half in "01"]

    async def publish(half: list[EventEnvelope]) -> None:
        for at in range(0, len(half), 100):
            await publisher.publish_all(half[at : at + 100])

    # Small runs, so that each call needs many for a partition.
    async with publishing(url, topic, KafkaConfig(partitions=3, batch_bytes=4000)) as publisher:
        await asyncio.gather(*(publish(half) for half in halves))

    records = await records_in(url, topic)
    assert len(records) == len(batch)
    assert order_of(records) == order_sent(batch)


@pytest.mark.fault("B8")
async def test_event_too_large_for_the_topic_is_refused_and_overtaken_by_others_only(
    url: str,
) -> None:
    topic = unique()
    await create(url, topic, **{"max.message.bytes": "20000"})
    large, behind, other = event("large", data=b"x" * 30_000), event("large"), event("other")

    async with publishing(url, topic, KafkaConfig(batch_bytes=15_000)) as publisher:
        outcomes = await outcomes_of(publisher, [large, behind, other])
        await settle(publisher, [other])

    assert kinds(outcomes) == [Refused, Unknown, Unknown]
    assert isinstance(outcomes[0], Refused)
    assert "too large for topic" in outcomes[0].reason
    assert order_of(await records_in(url, topic)) == order_sent([other])


async def test_runs_shrink_to_what_the_topic_takes(url: str) -> None:
    topic = unique()
    await create(url, topic, **{"max.message.bytes": "20000"})
    batch = [event(f"a{number % 5}", data=b"x" * 900) for number in range(200)]

    async with publishing(url, topic) as publisher:
        calls = await settle(publisher, batch)

    assert calls > 1, "the first was too large"
    assert order_of(await records_in(url, topic)) == order_sent(batch)


@pytest.mark.fault("B7", "B14")
async def test_missing_topic_is_one_clear_error_and_is_not_made(url: str) -> None:
    topic = unique()

    async with publishing(url, topic, KafkaConfig()) as publisher:
        with pytest.raises(ConfigurationError, match=f"has no topic {topic}: create it, or set"):
            await publisher.open()
        [outcome] = await outcomes_of(publisher, [event()])

    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, ConfigurationError)
    async with administering(url) as admin:
        assert topic not in await admin.list_topics()


async def test_missing_topic_is_created_with_its_partitions_if_asked_for(url: str) -> None:
    topic = unique()

    for _ in range(2):
        async with publishing(url, topic, KafkaConfig(partitions=3)) as publisher:
            await publisher.open()

    async with administering(url) as admin:
        [found] = await admin.describe_topics([topic])
    assert len(found["partitions"]) == 3


@pytest.mark.fault("B7")
async def test_topic_deleted_while_running_is_made_again(url: str) -> None:
    topic = unique()
    batch = [event(f"a{number % 5}") for number in range(20)]

    async with publishing(url, topic, IMPATIENT) as publisher:
        await publisher.publish(event())
        async with administering(url) as admin:
            await admin.delete_topics([topic])
            while topic in await admin.list_topics():  # noqa: ASYNC110 - what it takes is lost
                await asyncio.sleep(0.05)
        await settle(publisher, batch)

    assert order_of(await records_in(url, topic)) == order_sent(batch)


async def test_impossible_number_of_replicas_is_one_clear_error(url: str) -> None:
    config = KafkaConfig(partitions=1, replicas=3)

    async with publishing(url, unique(), config) as publisher:
        with pytest.raises(ConfigurationError, match="InvalidReplicationFactorError"):
            await publisher.open()


async def test_topic_may_depend_on_the_event(url: str) -> None:
    prefix = unique()
    batch = [event("a", "order.placed"), event("b", "order.paid"), event("b", "order.paid")]

    for topic in (f"{prefix}.{{event_type}}", lambda e: f"{prefix}.{e.event_type}"):
        publisher = KafkaPublisher(url, topic, config=FOUR)
        await publisher.publish_all(batch)
        await publisher.close()

    assert len(await records_in(url, f"{prefix}.order.placed")) == 2
    assert len(await records_in(url, f"{prefix}.order.paid")) == 4


async def test_event_whose_topic_has_an_impossible_name_is_refused(url: str) -> None:
    bad = event("a", "no/topic")

    async with publishing(url, unique() + ".{event_type}", KafkaConfig()) as publisher:
        [outcome] = await outcomes_of(publisher, [bad])

    assert isinstance(outcome, Refused)
    assert "is no name for a topic" in outcome.reason


async def test_event_without_a_topic_waits_and_holds_back_only_its_aggregate(url: str) -> None:
    prefix = unique()
    await create(url, f"{prefix}.known")
    batch = [event("a", "known"), event("a", "lost"), event("a", "known"), event("b", "known")]
    batch += [event("c", "lost"), event("c", "lost")]

    async with publishing(url, prefix + ".{event_type}", KafkaConfig()) as publisher:
        outcomes = await outcomes_of(publisher, batch)

    assert kinds(outcomes) == [Accepted, Deferred, Unknown, Accepted, Deferred, Unknown]
    assert isinstance(outcomes[1], Deferred)
    assert f"has no topic {prefix}.lost" in outcomes[1].reason


async def test_aggregate_with_two_topics_is_never_in_both_at_once(url: str) -> None:
    prefix = unique()
    batch = [event("a", kind) for kind in ("one", "one", "two", "one")]

    async with publishing(url, prefix + ".{event_type}", FOUR) as publisher:
        first = await outcomes_of(publisher, batch)
        calls = await settle(publisher, batch[2:])

    assert kinds(first) == [Accepted, Accepted, Unknown, Unknown]
    assert calls == 2


async def test_nobody_listening_is_broker_unavailable() -> None:
    publisher = KafkaPublisher("kafka://127.0.0.1:1,127.0.0.1:2")

    with pytest.raises(BrokerUnavailable, match="kafka://127.0.0.1:1,127.0.0.1:2"):
        await publisher.open()
    outcomes = await outcomes_of(publisher, [event(), event("b")])

    assert [isinstance(o, Unknown) and type(o.error) for o in outcomes] == [BrokerUnavailable] * 2


async def test_what_a_silent_broker_takes_late_comes_before_what_follows(victim: Server) -> None:
    topic = unique()
    batch = [event(f"a{number % 5}") for number in range(50)]

    async with publishing(victim.url, topic, IMPATIENT) as publisher:
        await publisher.publish_all(batch[:10])
        victim.pause()
        silent = await outcomes_of(publisher, batch[10:30])
        victim.resume()
        await settle(publisher, batch[10:30])
        await settle(publisher, batch[30:])

    assert set(kinds(silent)) == {Unknown}
    assert order_of(await records_in(victim.url, topic)) == order_sent(batch)


async def test_what_was_given_up_before_it_was_sent_is_never_sent(victim: Server) -> None:
    topic, complaints = unique(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    async with publishing(victim.url, topic, IMPATIENT) as publisher:
        await publisher.publish(event("first"))
        victim.pause()
        sent = asyncio.create_task(outcomes_of(publisher, [event("sent")]))
        await is_in_flight(publisher)
        waiting = [event(f"waiting-{number}") for number in range(20)]
        outcomes = await outcomes_of(publisher, waiting) + await sent
        victim.resume()
        await settle(publisher, [last := event("last")])
    gc.collect()

    assert set(kinds(outcomes)) == {Unknown}
    found = order_of(await records_in(victim.url, topic))
    assert found.pop("last") == [str(last.event_id)]
    assert found.keys() <= {"first", "sent"}
    assert complaints == []


async def is_in_flight(publisher: KafkaPublisher) -> None:
    for _ in range(3_000):
        if publisher._producer._message_accumulator._pending_batches:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was sent")

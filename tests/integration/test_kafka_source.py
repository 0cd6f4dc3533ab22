"""KafkaSource on a real broker: commits, dead letters, and groups that change under load."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from outrider import BrokerUnavailable, ConfigurationError, EventConsumer, EventEnvelope
from outrider.brokers.kafka import KafkaConfig, KafkaSource
from outrider.consumer.consumer import ConsumerConfig
from outrider.ports import Delivery
from outrider.testing.services import Services
from outrider.testing.services.servers.server import Server
from tests.support.brokers.events import event
from tests.support.brokers.kafka_topics import (
    ONE,
    committed,
    create,
    order_sent,
    publishing,
    records_in,
    send_raw,
    unique,
)

AT_ONCE = KafkaConfig(partitions=1, commit_interval=timedelta(0))


@pytest.fixture
def url(services: Services) -> str:
    return services.kafka.url


@asynccontextmanager
async def receiving(
    url: str, topic: str | list[str], config: KafkaConfig = ONE, **more: str
) -> AsyncIterator[KafkaSource]:
    source = KafkaSource(url, topic, group="billing", config=config, **more)
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def receive(source: KafkaSource, count: int) -> list[Delivery]:
    """So many, however often the broker is away."""
    found: list[Delivery] = []
    async with asyncio.timeout(90):
        while len(found) < count:
            try:
                found += await source.receive(count - len(found))
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
    return found


async def send(url: str, topic: str, count: int, config: KafkaConfig = ONE) -> list[EventEnvelope]:
    sent = [event(f"a{number % 3}") for number in range(count)]
    async with publishing(url, topic, config) as publisher:
        await publisher.publish_all(sent)
    return sent


async def test_only_what_has_no_gap_before_it_is_committed(url: str) -> None:
    topic, commits = unique(), []
    await send(url, topic, 6)

    async with receiving(url, topic, AT_ONCE) as source:
        found = await receive(source, 6)
        for number in (1, 2, 0, 5, 3, 4):
            await source.acknowledge(found[number])
            commits.append((await committed(url, "billing", topic)).get(0))

    assert commits == [0, 0, 3, 3, 4, 6]


async def test_closing_commits_what_was_acknowledged_last(url: str) -> None:
    topic = unique()
    await send(url, topic, 5)

    async with receiving(url, topic, KafkaConfig(partitions=1)) as source:
        for delivery in (await receive(source, 5))[:4]:
            await source.acknowledge(delivery)

    assert await committed(url, "billing", topic) == {0: 4}


async def test_acknowledged_events_are_committed_while_others_come(url: str) -> None:
    topic = unique()
    await send(url, topic, 5)

    async with receiving(url, topic, KafkaConfig(partitions=1)) as source:
        for delivery in await receive(source, 5):
            await source.acknowledge(delivery)
        assert await source.receive(10) == []

        assert await committed(url, "billing", topic) == {0: 5}


async def test_dead_letter_is_the_record_with_reason_origin_address_and_group(url: str) -> None:
    topic, dead = unique(), unique("dead")
    [sent] = await send(url, topic, 1)

    async with receiving(url, topic, dead_letters=dead) as source:
        [delivery] = await receive(source, 1)
        await source.dead_letter(delivery, "send_invoice: ValueError")
    [original], [letter] = await records_in(url, topic), await records_in(url, dead)

    assert (letter.key, letter.value) == (original.key, sent.data)
    assert dict(letter.headers) == {
        **dict(original.headers),
        "dead-letter-reason": b"send_invoice: ValueError",
        "dead-letter-origin": f"{topic}/0/0".encode(),
        "dead-letter-address": topic.encode(),
        "dead-letter-group": b"billing",
    }
    assert await committed(url, "billing", topic) == {0: 1}


async def test_dead_letter_of_a_dead_letter_has_only_the_newest_reason(url: str) -> None:
    topic, dead, dead_again = unique(), unique("dead"), unique("dead")
    await send(url, topic, 1)

    async with receiving(url, topic, dead_letters=dead) as source:
        await source.dead_letter((await receive(source, 1))[0], "first")
    async with receiving(url, dead, dead_letters=dead_again) as source:
        await source.dead_letter((await receive(source, 1))[0], "second")
    [letter] = await records_in(url, dead_again)

    added = [(name, value) for name, value in letter.headers if name.startswith("dead-letter-")]
    assert sorted(added) == [
        ("dead-letter-address", dead.encode()),
        ("dead-letter-group", b"billing"),
        ("dead-letter-origin", f"{dead}/0/0".encode()),
        ("dead-letter-reason", b"second"),
    ]


async def test_what_is_no_event_is_a_delivery_with_a_problem(url: str) -> None:
    topic = unique()
    await create(url, topic)
    await send_raw(url, topic, b"plain text")
    await send_raw(url, topic, None)
    await send_raw(url, topic, b"{}", headers=[("ce_id", b"\xff")])
    await send_raw(url, topic, b"null", headers=[("ce_id", None)])

    async with receiving(url, topic) as source:
        found = await receive(source, 4)
        for delivery in found:
            await source.dead_letter(delivery, delivery.problem or "")

    assert [delivery.envelope for delivery in found] == [None] * 4
    assert all(delivery.problem for delivery in found)
    letters = await records_in(url, f"{topic}.dlq")
    assert [letter.value for letter in letters] == [b"plain text", b"", b"{}", b"null"]


async def test_topics_are_received_side_by_side_each_with_its_dead_letters(url: str) -> None:
    topics = [unique(), unique()]
    sent = [(await send(url, topic, 1))[0] for topic in topics]

    async with receiving(url, topics) as source:
        found = await receive(source, 2)
        for delivery in found:
            await source.dead_letter(delivery, "x")

    assert {delivery.envelope for delivery in found} == set(sent)
    for topic in topics:
        assert len(await records_in(url, f"{topic}.dlq")) == 1


@pytest.mark.parametrize("missing", ["", ".dlq"])
async def test_missing_topic_is_one_clear_error(url: str, missing: str) -> None:
    topic = unique()
    if missing:
        await create(url, topic)

    with pytest.raises(ConfigurationError, match=f"has no topic .*{topic}{missing}"):
        async with receiving(url, topic, KafkaConfig()):
            pass


async def test_nobody_listening_is_broker_unavailable() -> None:
    source = KafkaSource("kafka://127.0.0.1:1", "events", group="billing")

    with pytest.raises(BrokerUnavailable):
        await source.open()
    with pytest.raises(BrokerUnavailable):
        await source.receive(1)
    await source.close()


@pytest.fixture
def victim(services: Services) -> Server:
    """A broker of our own, which can be hurt."""
    return services.victim("kafka")


IMPATIENT = KafkaConfig(
    partitions=1,
    connect_timeout=timedelta(seconds=1),
    publish_timeout=timedelta(seconds=1),
    takeover_after=timedelta(seconds=6),
)


async def test_silent_broker_is_unavailable_and_closing_ends(victim: Server) -> None:
    topic = unique()
    await send(victim.url, topic, 2)

    source = KafkaSource(victim.url, topic, group="billing", config=IMPATIENT)
    await source.open()
    held = await receive(source, 2)
    victim.pause()
    try:
        with pytest.raises(BrokerUnavailable):
            await source.receive(1)
        with pytest.raises(BrokerUnavailable):
            await source.dead_letter(held[0], "x")
        async with asyncio.timeout(30):
            await source.close()
    finally:
        victim.resume()

    source = KafkaSource(victim.url, topic, group="billing", config=IMPATIENT)
    again = await receive(source, 2)
    await source.close()
    assert [delivery.lost for delivery in held] == [True, True]
    assert [each.envelope for each in again] == [each.envelope for each in held]


async def test_closing_in_an_outage_leaves_nothing_behind(victim: Server) -> None:
    topic = unique()
    await send(victim.url, topic, 1)

    async with receiving(victim.url, topic, IMPATIENT) as source:
        await receive(source, 1)
        await asyncio.to_thread(victim.kill)
        with pytest.raises(BrokerUnavailable):
            await source.receive(1)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.to_thread(victim.start)

    assert left == set()


async def test_unacknowledged_events_are_lost_when_the_group_changes(url: str) -> None:
    topic = unique()
    config = KafkaConfig(partitions=2)
    batch = [event(f"a{number}") for number in range(20)]
    async with publishing(url, topic, config) as publisher:
        await publisher.publish_all(batch)

    async with receiving(url, topic, config) as first:
        held = await receive(first, 20)
        async with receiving(url, topic, config) as second:
            moved: list[Delivery] = []
            again: list[Delivery] = []
            async with asyncio.timeout(60):
                while len(moved) + len(again) < 20:
                    found = await asyncio.gather(first.receive(20), second.receive(20))
                    again += found[0]
                    moved += found[1]
            for delivery in held:
                await first.acknowledge(delivery)
            await first.close()
            rest = await receive(second, 20)

    assert all(delivery.lost for delivery in held)
    assert moved
    assert again
    assert {d.envelope for d in moved + again} == set(batch)
    assert {d.envelope for d in rest} == set(batch), "nothing was acknowledged"
    assert not any(d.suspect for d in moved + again + rest), "no process died"


class Journal:
    """What the handlers of all consumers saw, in order, without repetitions."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, None]] = defaultdict(dict)
        self.unique, self.calls = 0, Counter[str]()
        self._changed = asyncio.Event()

    def add(self, who: str, envelope: EventEnvelope) -> None:
        known, event_id = self.seen[envelope.aggregate_id], str(envelope.event_id)
        self.unique += event_id not in known
        known.setdefault(event_id)
        self.calls[who] += 1
        self._changed.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(120):
            while self.unique < count:
                self._changed.clear()
                await self._changed.wait()


class Handler:
    def __init__(self, name: str, journal: Journal) -> None:
        self.name, self._journal = name, journal
        self._dice = random.Random(name)

    async def handle(self, envelope: EventEnvelope, /) -> None:
        await asyncio.sleep(self._dice.random() / 100)
        self._journal.add(self.name, envelope)


async def test_order_holds_while_sources_come_and_go_under_load(url: str) -> None:
    topic, journal = unique(), Journal()
    config = KafkaConfig(partitions=6, takeover_after=timedelta(seconds=6))
    batch = [event(f"a{number % 200}") for number in range(10_000)]

    def consumer(name: str) -> EventConsumer:
        source = KafkaSource(url, topic, group="billing", config=config)
        handlers = [("*", Handler(name, journal))]
        return EventConsumer(source, handlers, ConsumerConfig(prefetch=100))

    async def publish() -> None:
        async with publishing(url, topic, config) as publisher:
            for at in range(0, len(batch), 100):
                await publisher.publish_all(batch[at : at + 100])
                await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        async with consumer("first"):
            await journal.has(1_000)
            async with consumer("second"):
                await journal.has(3_000)
                async with consumer("third"):
                    await journal.has(5_000)
            await journal.has(7_000)
        async with consumer("fourth"):
            await journal.has(len(batch))

    assert {key: list(ids) for key, ids in journal.seen.items()} == order_sent(batch)
    assert journal.calls.keys() == {"first", "second", "third", "fourth"}

"""RabbitMQSource on a real broker: whose turn it is, what it can read, where dead letters go."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import aio_pika
import aiormq
import pytest

from examples.messaging.topology import messaging_topology
from outrider import BrokerUnavailable, ConfigurationError, EventEnvelope
from outrider.brokers.rabbitmq import (
    Binding,
    Exchange,
    Queue,
    RabbitMQConfig,
    RabbitMQSource,
    Topology,
    crash_counts,
)
from outrider.brokers.rabbitmq.connection import publish_one
from outrider.consumer.consumer import ConsumerConfig, EventConsumer
from outrider.events.cloudevents import to_structured
from outrider.ports import Delivery
from outrider.testing.conformance.events import events, order_of
from outrider.testing.services import Services
from tests.support.brokers.events import event
from tests.support.brokers.rabbitmq_admin import add_user, close_connections
from tests.support.brokers.rabbitmq_queues import messages_in, one_queue, publishing, unique
from tests.support.canary import CANARY
from tests.support.processes.deadly_consumer import consume_until_it_lives

MAX_WAIT_S = 60


@pytest.fixture
def url(services: Services) -> str:
    return services.rabbitmq.url


@asynccontextmanager
async def receiving(
    url: str, name: str, topology: Topology | None = None, **settings: Any
) -> AsyncIterator[RabbitMQSource]:
    source = RabbitMQSource(url, queue=name, topology=topology, **settings)
    try:
        await source.open()
        yield source
    finally:
        await source.close()


async def some(source: RabbitMQSource, count: int) -> list[Delivery]:
    """Exactly so many, however many calls it takes."""
    found: list[Delivery] = []
    async with asyncio.timeout(MAX_WAIT_S):
        while len(found) < count:
            try:
                found += await source.receive(count - len(found))
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
    return found


async def sent(url: str, name: str, batch: Sequence[EventEnvelope], topology: Topology) -> None:
    async with publishing(url, name, topology) as publisher:
        await publisher.publish_all(batch)


@asynccontextmanager
async def channel_to(url: str) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    async with await aio_pika.connect(url) as connection:
        yield await connection.channel()


async def put(url: str, queue: str, message: aio_pika.Message) -> None:
    """Straight into the queue, as any program could."""
    async with channel_to(url) as channel:
        await channel.default_exchange.publish(message, queue)


def envelopes(found: Sequence[Delivery]) -> list[EventEnvelope]:
    return [delivery.envelope for delivery in found if delivery.envelope is not None]


KINDS: dict[str, Callable[[str], Topology | None]] = {
    "single active consumer of a classic queue": lambda name: one_queue(
        name, single_active_consumer=True
    ),
    "single active consumer of a quorum queue": lambda name: one_queue(
        name, single_active_consumer=True, kind="quorum"
    ),
    "exclusive consumer of a classic queue": one_queue,
}


@pytest.fixture(params=KINDS)
def topology_of(request: pytest.FixtureRequest) -> Callable[[str], Topology]:
    return KINDS[request.param]  # type: ignore[return-value]


async def test_each_one_that_takes_over_begins_with_the_oldest(
    url: str, topology_of: Callable[[str], Topology]
) -> None:
    name, left = unique(), [event() for _ in range(60)]
    topology, config = topology_of(name), RabbitMQConfig(prefetch=15)
    await sent(url, name, left, topology)

    async with (
        receiving(url, name, topology, config=config) as one,
        receiving(url, name, topology, config=config) as other,
    ):
        active, standing_by = one, other
        found = await some(active, 10)
        for turn in range(9):
            assert envelopes(found) == left[:10]
            # Not the first ones only: what is in between goes back to its old place.
            for delivery in found[:turn:2]:
                await active.acknowledge(delivery)
                left.remove(delivery.envelope)  # type: ignore[arg-type]
            await active.close()
            assert all(delivery.lost for delivery in found[1:turn:2])
            found = await some(standing_by, 10)
            await active.open()
            active, standing_by = standing_by, active


async def test_who_stands_by_receives_nothing(
    url: str, topology_of: Callable[[str], Topology]
) -> None:
    name = unique()
    topology = topology_of(name)

    async with (
        receiving(url, name, topology) as active,
        receiving(url, name, topology) as standing_by,
    ):
        await sent(url, name, [event() for _ in range(5)], topology)
        found = await some(active, 5)
        others = await standing_by.receive(10)

    assert (len(found), list(others)) == (5, [])


async def test_unordered_sources_share_the_work(url: str) -> None:
    name = unique()
    topology, config = one_queue(name), RabbitMQConfig(prefetch=5)
    settings = {"ordered": False, "config": config}

    async with (
        receiving(url, name, topology, **settings) as one,
        receiving(url, name, topology, **settings) as other,
    ):
        await sent(url, name, [event(str(number)) for number in range(10)], topology)
        found = await asyncio.gather(some(one, 5), some(other, 5))

    assert len({e.event_id for part in found for e in envelopes(part)}) == 10


async def test_queue_that_nobody_described_is_made_for_one_active_consumer(url: str) -> None:
    name = unique()

    async with receiving(url, name):
        pass

    with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="single-active"):
        async with channel_to(url) as channel:
            await channel.declare_queue(name, durable=True)


async def test_plain_queue_of_somebody_else_is_consumed_exclusively(url: str) -> None:
    name = unique()
    async with channel_to(url) as channel:
        await channel.declare_queue(name, durable=True)

    async with receiving(url, name) as active, receiving(url, name) as standing_by:
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="exclusive use"):
            async with channel_to(url) as channel:
                await (await channel.get_queue(name)).consume(print)
        await put(url, name, aio_pika.Message(b""))
        assert len(await some(active, 1)) == 1
        await active.close()
        assert len(await some(standing_by, 1)) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x-dead-letter-exchange": "amq.fanout"}, "x-dead-letter-exchange"),
        ({"x-queue-type": "quorum"}, "x-queue-type"),
        ({"x-single-active-consumer": True, "x-max-length": 9}, "x-max-length"),
    ],
)
async def test_other_queue_of_somebody_else_must_be_described(
    url: str, arguments: dict[str, Any], named: str
) -> None:
    name = unique()
    async with channel_to(url) as channel:
        await channel.declare_queue(name, durable=True, arguments=arguments)

    with pytest.raises(ConfigurationError, match=f"'{named}'.*; describe it in the topology"):
        async with receiving(url, name):
            pass
    if "x-queue-type" not in arguments:
        described = Topology(queues=(Queue(name, arguments=arguments),))
        async with receiving(url, name, described) as source:
            assert list(await source.receive(1)) == []


async def test_quorum_queue_by_default_of_its_vhost_is_not_taken_for_a_classic_one(
    services: Services, url: str
) -> None:
    vhost, server = unique("vhost"), services.rabbitmq
    described, unknown = unique(), unique()
    theirs = replaced(url, vhost=vhost)
    user = urlsplit(url).username or ""
    await asyncio.to_thread(server.ctl, "add_vhost", vhost, "--default-queue-type", "quorum")
    await asyncio.to_thread(server.ctl, "set_permissions", "-p", vhost, user, ".*", ".*", ".*")
    async with channel_to(theirs) as channel:
        for name in (described, unknown):
            await channel.declare_queue(name, durable=True)

    with pytest.raises(ConfigurationError, match="'x-queue-type'.*'quorum'"):
        async with receiving(theirs, described, one_queue(described)):
            pass
    with pytest.raises(ConfigurationError, match="'x-queue-type'.*'quorum'"):
        async with receiving(theirs, unknown):
            pass


async def test_source_declares_the_exchange_it_binds_to(url: str) -> None:
    name = unique()
    topology = Topology(queues=(Queue(name, (Binding(name, "order.*"), Binding("amq.fanout"))),))
    batch = [event()]

    async with receiving(url, name, topology) as source:
        await sent(url, name, batch, Topology())
        found = await some(source, 1)

    assert envelopes(found) == batch


async def test_bodies_of_any_size_arrive_unchanged(url: str) -> None:
    name = unique()
    topology = one_queue(name)
    sizes = [0, 1, 131_064, 131_065, 1_000_000]
    batch = [event(data=b"x" * size) for size in sizes]

    async with receiving(url, name, topology) as source:
        await sent(url, name, batch, topology)
        found = await some(source, len(batch))

    assert [e.data for e in envelopes(found)] == [e.data for e in batch]


async def test_twenty_thousand_events_are_handled_in_order(url: str) -> None:
    name = unique()
    topology, count = one_queue(name, single_active_consumer=True), 20_000
    batch = [event(f"a{number % 97}", data=str(number).encode()) for number in range(count)]
    handled: dict[str, list[int]] = defaultdict(list)
    done = asyncio.Event()

    class Note:
        name = "note"

        async def handle(self, envelope: EventEnvelope) -> None:
            handled[envelope.aggregate_id].append(int(envelope.data))
            if sum(map(len, handled.values())) == count:
                done.set()

    source = RabbitMQSource(url, queue=name, topology=topology)
    async with (
        publishing(url, name, topology) as publisher,
        EventConsumer(source, [("*", Note())], ConsumerConfig(concurrency=64)),
    ):
        for at in range(0, count, 1000):
            await publisher.publish_all(batch[at : at + 1000])
        await asyncio.wait_for(done.wait(), 2 * MAX_WAIT_S)

    assert all(numbers == sorted(set(numbers)) for numbers in handled.values())
    assert await messages_in(url, name) == []


async def test_no_more_than_the_prefetch_is_ahead_of_its_acknowledgement(
    services: Services, url: str
) -> None:
    name = unique()
    topology, config = one_queue(name), RabbitMQConfig(prefetch=7)
    await sent(url, name, [event(str(number)) for number in range(30)], topology)

    async with receiving(url, name, topology, config=config) as source:
        held = await some(source, 7)
        assert list(await source.receive(10)) == []
        await source.acknowledge(held[3])
        assert len(await some(source, 1)) == 1


async def at_once() -> None:
    """The broker notices the death of a process at once."""


@pytest.mark.fault("E2")
async def test_message_that_kills_consumers_becomes_the_only_dead_letter(
    url: str, topology_of: Callable[[str], Topology]
) -> None:
    name = unique()
    topology, batch = topology_of(name), events(30, "a", "b", "c")
    await sent(url, name, batch, topology)
    source = partial(RabbitMQSource, url, queue=name, topology=topology)

    deaths, handled = await consume_until_it_lives(source, batch, batch[7], at_once)
    [letter] = await messages_in(url, f"{name}.dlq")

    assert deaths == 4, "the first death finds the suspects, three more the culprit"
    assert letter.body == batch[7].data
    assert letter.headers["dead-letter-reason"] == "3 processes died while handling it"
    assert order_of(handled) == order_of([*batch[:7], *batch[8:]])
    assert await messages_in(url, name) == []


async def test_message_that_kills_consumers_which_share_a_queue_is_the_only_dead_letter(
    url: str,
) -> None:
    name = unique()
    topology, batch = one_queue(name), events(30)
    await sent(url, name, batch, topology)
    source = partial(RabbitMQSource, url, queue=name, topology=topology, ordered=False)

    deaths, handled = await consume_until_it_lives(source, batch, batch[7], at_once)
    [letter] = await messages_in(url, f"{name}.dlq")

    assert deaths == 4
    assert letter.body == batch[7].data
    assert {each.event_id for each in handled} == {
        each.event_id for each in batch if each != batch[7]
    }


@asynccontextmanager
async def suspects(url: str, name: str, count: int) -> AsyncIterator[list[Any]]:
    """A source, and messages that another one of its group held."""
    topology = one_queue(name)
    await sent(url, name, events(count), topology)
    async with receiving(url, name, topology, ordered=False) as source:
        await some(source, count)
    async with receiving(url, name, topology, ordered=False) as source:
        yield [source, *await some(source, count)]


async def counted(url: str, name: str) -> list[int]:
    [record] = await messages_in(url, f"{name}.crashes")
    return list(json.loads(record.body)["crashes"].values())


async def test_count_of_a_settled_message_is_not_kept(url: str) -> None:
    name = unique()

    async with suspects(url, name, 2) as (source, first, second):
        await source.adjust_crash_count(first)
        await source.acknowledge(first)
        await source.adjust_crash_count(second)
        await source.adjust_crash_count(second)

    assert await counted(url, name) == [2]


async def test_count_that_was_stored_without_an_answer_is_not_stored_twice(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique()

    async def no_answer(*arguments: Any) -> None:
        await publish_one(*arguments)
        monkeypatch.undo()
        raise BrokerUnavailable("the answer was lost")

    async with suspects(url, name, 1) as (source, delivery):
        monkeypatch.setattr(crash_counts, "publish_one", no_answer)
        with pytest.raises(BrokerUnavailable, match="the answer was lost"):
            await source.adjust_crash_count(delivery)
        await source.adjust_crash_count(delivery)

    assert delivery.crash_count == 1
    assert await counted(url, name) == [1]


async def test_messages_of_a_source_that_was_closed_are_no_suspects(
    url: str, topology_of: Callable[[str], Topology]
) -> None:
    name = unique()
    topology = topology_of(name)
    await sent(url, name, [event() for _ in range(3)], topology)
    found = []

    for _ in range(3):
        async with receiving(url, name, topology) as source:
            found += [each.suspect for each in await some(source, 3)]

    assert found == [False] * 9


async def test_messages_that_come_again_after_a_lost_connection_are_no_suspects(
    services: Services, url: str
) -> None:
    name = unique()
    topology = one_queue(name, single_active_consumer=True)
    await sent(url, name, [event() for _ in range(3)], topology)

    async with receiving(url, name, topology) as source:
        await some(source, 3)
        await asyncio.to_thread(close_connections, services.rabbitmq)
        again = await some(source, 3)

    assert [each.suspect for each in again] == [False] * 3


async def test_count_of_a_broker_is_not_copied_to_the_dead_letter(url: str) -> None:
    name = unique()
    topology = KINDS["single active consumer of a quorum queue"](name)
    assert topology is not None
    await sent(url, name, [event()], topology)

    async with receiving(url, name, topology) as source:
        await some(source, 1)
    async with receiving(url, name, topology) as source:
        await source.dead_letter((await some(source, 1))[0], "no")
    [letter] = await messages_in(url, f"{name}.dlq")

    assert "x-delivery-count" not in letter.headers


SEED = {
    "aggregate_type": "group_message",
    "aggregate_id": "7",
    "event_type": "group_message.queued",
    "created_at": "2026-01-02T03:04:05.678901",
}


async def read_as(url: str, message: aio_pika.Message) -> Delivery:
    name = unique()
    async with receiving(url, name) as source:
        await put(url, name, message)
        return (await some(source, 1))[0]


async def test_message_of_a_hand_made_outbox_is_read(url: str) -> None:
    event_id = str(uuid4())
    message = aio_pika.Message(b'{"a":1}', message_id=event_id, headers=SEED)

    found = (await read_as(url, message)).envelope

    assert found is not None
    assert (str(found.event_id), found.event_type) == (event_id, "group_message.queued")
    assert (found.aggregate_type, found.aggregate_id) == ("group_message", "7")
    assert found.occurred_at == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert (found.payload, found.event_version) == ({"a": 1}, 1)


async def test_headers_may_be_of_any_type(url: str) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    seed = {**SEED, "aggregate_id": 7, "created_at": moment}
    ours: dict[str, Any] = {
        "ce-specversion": "1.0",
        "ce-id": str(uuid4()),
        "ce-type": "order.placed",
        "ce-time": moment,
        "ce-subject": 2**40,
        "ce-aggregatetype": "order",
        "ce-eventversion": 3,
        "ce-correlationid": 1.5,
        "ce-causationid": True,
        "ce-userid": {"a": [1]},
        "ce-traceid": None,
        "ce-unknown": bytearray(b"\xff"),
    }
    other: dict[str, Any] = {
        "count": -1,
        "rate": 0.5,
        "list": [1, "x", {"y": None}],
        "raw": bytearray(1),
    }

    by_hand = await read_as(
        url, aio_pika.Message(b"{}", message_id=str(uuid4()), headers=seed | other)
    )
    binary = await read_as(url, aio_pika.Message(b"{}", headers=ours | other))

    assert by_hand.envelope is not None
    assert (by_hand.envelope.aggregate_id, by_hand.envelope.occurred_at) == ("7", moment)
    found = binary.envelope
    assert found is not None
    assert (found.occurred_at, found.aggregate_id, found.event_version) == (moment, str(2**40), 3)
    assert (found.metadata.correlation_id, found.metadata.causation_id) == ("1.5", "true")
    assert (found.metadata.user_id, found.metadata.trace_id) == (None, None)


async def test_structured_cloud_event_is_read(url: str) -> None:
    sent_event = event("o-1", data=b'{"total":3}')
    message = aio_pika.Message(
        to_structured(sent_event, "/shop"),
        content_type="application/cloudevents+json; charset=utf-8",
    )

    assert (await read_as(url, message)).envelope == sent_event


@pytest.mark.parametrize(
    "message",
    [
        aio_pika.Message(CANARY.encode()),
        aio_pika.Message(CANARY.encode(), headers={"ce-id": CANARY}),
        aio_pika.Message(b"{}", message_id=f"\n{CANARY}", headers=SEED),
        aio_pika.Message(b"{}", message_id=str(uuid4()), headers=SEED | {"created_at": CANARY}),
        aio_pika.Message(b"{}", message_id=str(uuid4()), headers=SEED | {"aggregate_id": []}),
        aio_pika.Message(b"{}", message_id=str(uuid4()), headers={"event_type": "a.b"}),
        aio_pika.Message(CANARY.encode(), content_type="application/cloudevents+json"),
    ],
    ids=["no headers", "half", "id", "time", "list", "aggregate", "structured"],
)
async def test_what_is_no_event_is_explained_without_its_content(
    url: str, message: aio_pika.Message
) -> None:
    found = await read_as(url, message)

    assert found.envelope is None
    assert found.problem
    assert CANARY not in found.problem


async def test_dead_letter_is_the_message_as_it_was_and_the_reason(url: str) -> None:
    name, moment = unique(), datetime(2026, 1, 2, tzinfo=UTC)
    headers: dict[str, Any] = {
        "text": "ünï", "count": 2**40, "rate": 0.5, "when": moment, "flag": True, "nothing": None,
        "list": [1, "x", {"y": 2}], "dead-letter-reason": "an older one",
    }  # fmt: skip
    message = aio_pika.Message(
        b"\xff" * 300_000,
        headers={**headers, "CC": [name]},
        content_type="text/plain",
        content_encoding="gzip",
        priority=3,
        correlation_id="c-1",
        reply_to="somewhere",
        expiration=timedelta(hours=1),
        message_id="ü-1",
        timestamp=moment,
        type="odd",
        user_id=urlsplit(url).username,
        app_id="shop",
        delivery_mode=aio_pika.DeliveryMode.NOT_PERSISTENT,
    )

    async with receiving(url, name) as source:
        await put(url, name, message)
        [delivery] = await some(source, 1)
        await source.dead_letter(delivery, "Grund: ValueError\ud800" + "x" * 2000)
        left = await source.receive(1)  # where CC would have sent a copy to
    [found] = await messages_in(url, f"{name}.dlq")

    assert list(left) == await messages_in(url, name) == []
    assert found.body == message.body
    reason = found.headers.pop("dead-letter-reason")
    assert isinstance(reason, str)
    assert reason.startswith("Grund: ValueError?xxx")
    assert len(reason) <= 1000
    assert found.headers.pop("dead-letter-origin") == name
    assert found.headers.pop("dead-letter-address") == f"/{name}"
    assert found.headers.pop("dead-letter-group") == name
    assert found.headers == {k: v for k, v in headers.items() if k != "dead-letter-reason"}
    assert (found.content_type, found.content_encoding, found.priority) == ("text/plain", "gzip", 3)
    assert (found.correlation_id, found.reply_to, found.app_id) == ("c-1", "somewhere", "shop")
    assert (found.message_id, found.timestamp, found.type) == ("ü-1", moment, "odd")
    # It must not expire, nor vanish with a restart, and only its author may use its user's name.
    assert (found.expiration, found.user_id) == (None, None)
    assert found.delivery_mode == aio_pika.DeliveryMode.PERSISTENT


async def test_dead_letters_of_a_queue_with_an_exchange_for_them_go_there(url: str) -> None:
    exchange = unique()
    topology = messaging_topology(exchange)
    [dead, queue, *_] = topology.queues
    renamed = Topology(
        topology.exchanges,
        (
            dead,
            Queue(exchange, (Binding(exchange),), dead_letter_exchange=queue.dead_letter_exchange),
        ),
    )
    batch = [event("a", "group_message.queued")]

    async with receiving(url, exchange, renamed) as source:
        await sent(url, exchange, batch, renamed)
        await source.dead_letter((await some(source, 1))[0], "no")
    [found] = await messages_in(url, dead.name)

    assert (found.exchange, found.routing_key) == (f"{exchange}.dlx", "group_message.queued")
    assert found.headers["dead-letter-reason"] == "no"
    assert found.headers["ce-id"] == str(batch[0].event_id)


@pytest.mark.parametrize("by", ["setting", "argument"])
async def test_dead_letters_go_where_they_are_wanted(url: str, by: str) -> None:
    name, dead = unique(), unique("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = Queue(name, arguments=arguments if by == "argument" else {})
    letters = Queue(dead, (Binding(dead),))
    topology = Topology((Exchange(dead),), (queue, letters))
    wanted = dead if by == "setting" else None

    async with receiving(url, name, topology, dead_letters=wanted) as source:
        await put(url, name, aio_pika.Message(b"here"))
        await source.dead_letter((await some(source, 1))[0], "no")

    assert [message.body for message in await messages_in(url, dead)] == [b"here"]


async def test_missing_exchange_for_dead_letters_is_one_clear_error(url: str) -> None:
    name = unique()
    with pytest.raises(ConfigurationError, match="no exchange 'missing"):
        async with receiving(url, name, dead_letters=unique("missing")):
            pass


async def test_dead_letter_that_cannot_be_written_stays_unacknowledged(url: str) -> None:
    name, dead = unique(), unique("dead")
    full = Queue(dead, (Binding(dead, "full"),), max_length=1)
    topology = Topology((Exchange(dead),), (Queue(name), full))

    async with receiving(url, name, topology, dead_letters=dead) as source:
        async with channel_to(url) as channel:
            shop = await channel.declare_exchange(name)
            queue = await channel.get_queue(name)
            for key in ("nowhere", *["full"] * 3):
                await queue.bind(shop, key)
                await shop.publish(aio_pika.Message(b""), key)
        found = await some(source, 4)
        with pytest.raises(BrokerUnavailable, match="unroutable: NO_ROUTE.*'nowhere'"):
            await source.dead_letter(found[0], "no")
        refusals = 0
        for delivery in found[1:]:
            try:
                await source.dead_letter(delivery, "no")
            except BrokerUnavailable as error:
                refusals += "nacked" in str(error)
        assert not any(delivery.lost for delivery in found)
    async with receiving(url, name, topology, dead_letters=dead) as source:
        again = await some(source, 1 + refusals)
        more = await source.receive(1)

    assert refusals >= 1
    assert (len(again), list(more)) == (1 + refusals, [])


async def test_deleted_queue_for_dead_letters_is_declared_again(url: str) -> None:
    name = unique()

    async with receiving(url, name) as source:
        for _ in range(2):
            await put(url, name, aio_pika.Message(b""))
        found = await some(source, 2)
        await source.dead_letter(found[0], "no")
        async with channel_to(url) as channel:
            await channel.queue_delete(f"{name}.dlq")
        with pytest.raises(BrokerUnavailable, match="unroutable"):
            await source.dead_letter(found[1], "no")
        await source.dead_letter(found[1], "no")

    assert len(await messages_in(url, f"{name}.dlq")) == 1


async def test_queue_deleted_while_consuming_is_declared_again(
    url: str, topology_of: Callable[[str], Topology]
) -> None:
    name, batch = unique(), [event()]
    topology = topology_of(name)

    async with receiving(url, name, topology) as source:
        await sent(url, name, [event()], topology)
        held = await some(source, 1)
        async with channel_to(url) as channel:
            await channel.queue_delete(name)
        async with asyncio.timeout(MAX_WAIT_S):
            while not held[0].lost:  # noqa: ASYNC110 - it is a fact, not an event
                await asyncio.sleep(0.01)
        await source.acknowledge(held[0])
        assert list(await source.receive(1)) == []
        await sent(url, name, batch, topology)
        found = await some(source, 1)

    assert envelopes(found) == batch


async def test_queue_deleted_while_standing_by_is_declared_again(url: str) -> None:
    name, batch = unique(), [event()]
    topology = one_queue(name)

    async with receiving(url, name, topology), receiving(url, name, topology) as standing_by:
        async with channel_to(url) as channel:
            await channel.queue_delete(name)
        with pytest.raises(BrokerUnavailable, match="NOT_FOUND"):
            await standing_by.receive(1)
        assert list(await standing_by.receive(1)) == []
        await sent(url, name, batch, topology)
        found = await some(standing_by, 1)

    assert envelopes(found) == batch


async def test_connection_closed_by_the_broker_is_opened_again(
    services: Services, url: str
) -> None:
    name, batch = unique(), [event(), event()]
    topology = one_queue(name)
    await sent(url, name, batch, topology)

    async with receiving(url, name, topology) as source:
        held = await some(source, 2)
        await asyncio.to_thread(close_connections, services.rabbitmq)
        again = await some(source, 2)
        for delivery in (*held, *again):
            await source.acknowledge(delivery)
            await source.acknowledge(delivery)

    assert [delivery.lost for delivery in held] == [True, True]
    assert envelopes(again) == batch
    assert await messages_in(url, name) == []


async def test_slow_handlers_keep_the_connection(url: str) -> None:
    name = unique()
    topology, config = one_queue(name), RabbitMQConfig(heartbeat=timedelta(seconds=1))
    await sent(url, name, [event()], topology)

    async with receiving(url, name, topology, config=config) as source:
        [held] = await some(source, 1)
        await asyncio.sleep(4)  # twice as long as the broker waits for a sign of life
        assert not held.lost
        await source.acknowledge(held)

    assert await messages_in(url, name) == []


def replaced(url: str, **parts: str) -> str:
    found = urlsplit(url)
    user, password = parts.get("user", found.username), parts.get("password", found.password)
    vhost = parts.get("vhost", found.path[1:])
    return f"amqp://{user}:{password}@{found.hostname}:{found.port}/{vhost}"


async def test_bad_credentials_and_unknown_vhost_are_explained_without_the_password(
    url: str,
) -> None:
    for bad in (replaced(url, password=CANARY), replaced(url, vhost="no-such-vhost")):
        source = RabbitMQSource(bad, queue="q")
        with pytest.raises(ConfigurationError) as caught:
            await source.open()
        secret = urlsplit(bad).password or ""
        assert secret not in repr(caught.value) + repr(caught.value.__cause__) + repr(source)
        assert "ACCESS_REFUSED" in str(caught.value) or "no-such-vhost" in str(caught.value)


async def test_nobody_listening_is_broker_unavailable() -> None:
    source = RabbitMQSource(f"amqp://user:{CANARY}@127.0.0.1:1/", queue="q")

    for call in (source.open, lambda: source.receive(1)):
        with pytest.raises(BrokerUnavailable) as caught:
            await call()
        assert CANARY not in str(caught.value)


async def test_user_who_may_only_read_receives_and_sets_aside(services: Services, url: str) -> None:
    server, user, name = services.rabbitmq, unique("user"), unique()
    names = (f"{name}.dlq", f"{name}.crashes")
    queues = [Queue(name, single_active_consumer=True), *map(Queue, names)]
    async with receiving(url, name, Topology(queues=tuple(queues))):
        await put(url, name, aio_pika.Message(b"x"))
    add_user(server, user, CANARY, configure="^$", write="^amq\\.default$", read=f"^{name}")
    theirs = replaced(url, user=user, password=CANARY)

    with pytest.raises(ConfigurationError, match="ACCESS_REFUSED"):
        async with receiving(theirs, name):
            pass
    existing = [
        Queue(name, single_active_consumer=True, passive=True),
        *(Queue(each, passive=True) for each in names),
    ]
    async with receiving(theirs, name, Topology(queues=tuple(existing))) as source:
        await source.dead_letter((await some(source, 1))[0], "no")

    assert len(await messages_in(url, f"{name}.dlq")) == 1

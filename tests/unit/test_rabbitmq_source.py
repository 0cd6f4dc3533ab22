"""What a source makes of frames, headers and plans, as far as it needs no real broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, body, commands, encode, frame, header

from outrider import BrokerUnavailable, ConfigurationError
from outrider.brokers.rabbitmq import (
    Binding,
    Exchange,
    Queue,
    RabbitMQConfig,
    RabbitMQSource,
    Topology,
)
from outrider.brokers.rabbitmq.amqp import (
    Message,
    read_properties,
    read_table,
    value_as_text,
    write_header,
    write_table,
)
from outrider.brokers.rabbitmq.messages import MessageWriter, to_delivery
from outrider.brokers.rabbitmq.queue_plan import QueuePlan, queue_plans
from outrider.ports import Delivery, EventSource
from tests.support.brokers.amqp_peer import PASSWORD, Conversation, Peer, envelope, listening
from tests.support.brokers.amqp_peer import Message as PeerMessage

Properties = commands.Basic.Properties


@asynccontextmanager
async def receiving(
    script: Callable[[Conversation], Awaitable[None]], **settings: Any
) -> AsyncIterator[tuple[Peer, RabbitMQSource]]:
    limit = timedelta(seconds=5)
    config = RabbitMQConfig(connect_timeout=limit, publish_timeout=limit, heartbeat=None)
    async with listening(script, **settings) as peer:
        source = RabbitMQSource(peer.url, queue="billing", config=config)
        try:
            yield peer, source
        finally:
            await source.close()


async def some(source: RabbitMQSource, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await source.receive(count - len(found))
    return found


def properties_of(name: str = "a") -> Properties:
    """Those that our own publisher gives to an event of this aggregate."""
    message = MessageWriter("shop", "tests").write(envelope(name), 4096)
    size, _, _ = frame.unmarshal(message)
    found = frame.unmarshal(message[size:])[2]
    assert isinstance(found, header.ContentHeader)
    return found.properties


class Acknowledgements:
    """What a broker knows to be unacknowledged; it takes no word for a message twice."""

    def __init__(self, count: int) -> None:
        self.left = set(range(1, count + 1))
        self.words = self.wrong = 0
        self.changed = asyncio.Event()

    async def listen(self, talk: Conversation) -> None:
        while True:
            match await talk.read():
                case commands.Basic.Ack() as ack:
                    self.wrong += ack.delivery_tag not in self.left
                    upto = range(1, ack.delivery_tag + 1) if ack.multiple else [ack.delivery_tag]
                    self.left.difference_update(upto)
                    self.words += 1
                    self.changed.set()
                case None:
                    pass
                case _:
                    return

    async def wait_for(self, left: set[int]) -> None:
        async with asyncio.timeout(30):
            while self.left != left:
                self.changed.clear()
                await self.changed.wait()


ORDERS = st.lists(st.integers(0, 11), unique=True).flatmap(
    lambda indexes: st.tuples(st.just(indexes), st.lists(st.integers(1, 4), max_size=12))
)


@given(order=ORDERS)
@settings(max_examples=60, deadline=None)
def test_broker_hears_of_exactly_those_that_were_acknowledged(
    order: tuple[list[int], list[int]],
) -> None:
    indexes, sizes = order
    known = Acknowledgements(13)

    async def script(talk: Conversation) -> None:
        await talk.consumer()
        for tag in range(1, 14):
            talk.deliver(tag, b"{}", properties_of())
        await known.listen(talk)

    async def story() -> None:
        async with receiving(script) as (_, source):
            found = await some(source, 13)
            left, waiting = set(range(1, 14)), list(indexes)
            for size in [*sizes, 12]:
                group, waiting = waiting[:size], waiting[size:]
                await asyncio.gather(*(source.acknowledge(found[index]) for index in group))
                left -= {index + 1 for index in group}
                await known.wait_for(left)
            for index in (*indexes, 12):
                await source.acknowledge(found[index])
            await known.wait_for(left - {13})

    asyncio.run(story())

    assert known.words <= len(indexes) + 1
    assert known.wrong == 0


async def test_acknowledgements_of_one_moment_are_one_word() -> None:
    known = Acknowledgements(50)

    async def script(talk: Conversation) -> None:
        await talk.consumer()
        for tag in range(1, 51):
            talk.deliver(tag, b"{}", properties_of())
        await known.listen(talk)

    async with receiving(script) as (_, source):
        found = await some(source, 50)
        await asyncio.gather(*(source.acknowledge(delivery) for delivery in reversed(found)))
        await known.wait_for(set())

    assert known.words == 1


async def test_deliveries_are_understood_when_they_come_byte_by_byte() -> None:
    bodies = [b"", b"[" + b"1" * 250, b"{}"]

    async def script(talk: Conversation) -> None:
        await talk.consumer()
        written, talk.writer.write = bytearray(), lambda data: written.extend(data)  # type: ignore
        for tag, content in enumerate(bodies, 1):
            talk.deliver(tag, content, properties_of(str(tag)))
            talk.writer.write(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        del talk.writer.write
        for at in range(len(written)):
            talk.writer.write(written[at : at + 1])
            await talk.writer.drain()
        await talk.read()

    async with receiving(script) as (_, source):
        found = await some(source, 3)

    assert [each.envelope.data for each in found if each.envelope] == bodies
    assert [each.envelope.aggregate_id for each in found if each.envelope] == ["1", "2", "3"]


DELIVER = frame.marshal(commands.Basic.Deliver("us", 1, False, "shop", "order.placed"), 1)
NO_CONTENT = frame.marshal(body.ContentBody(b"x"), 1)
NOISE = {
    "http": b"HTTP/1.1 400 Bad Request\r\n",
    "body without method": NO_CONTENT,
    "body without header": DELIVER + NO_CONTENT,
    "more body than announced": DELIVER
    + frame.marshal(header.ContentHeader(0, 1, Properties()), 1)
    + frame.marshal(body.ContentBody(b"xx"), 1),
    "short header": DELIVER + b"\x02\x00\x01\x00\x00\x00\x02\x00\x3c\xce",
    "confirm of nothing": frame.marshal(commands.Basic.Ack(7), 1),
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
async def test_noise_ends_the_connection_and_the_next_call_works(noise: bytes) -> None:
    async def script(talk: Conversation) -> None:
        await talk.consumer()
        talk.deliver(1, b"{}", properties_of())
        if len(peer.conversations) == 1:
            await talk.writer.drain()
            await asked.wait()
            talk.writer.write(noise)
        await talk.read()

    asked = asyncio.Event()
    async with receiving(script) as (peer, source):
        [held] = await some(source, 1)
        asked.set()
        with pytest.raises(BrokerUnavailable, match="no AMQP 0-9-1") as caught:
            await some(source, 1)
        [again] = await some(source, 1)

    assert (held.lost, again.envelope is not None) == (True, True)
    assert PASSWORD not in str(caught.value)


async def test_broker_that_ends_the_subscription_is_asked_again() -> None:
    async def script(talk: Conversation) -> None:
        await talk.consumer()
        talk.deliver(1, b"{}", properties_of())
        if len(peer.conversations) == 1:
            await asked.wait()
            talk.say(commands.Basic.Cancel("us"))
        await talk.read()

    asked = asyncio.Event()
    async with receiving(script) as (peer, source):
        [held] = await some(source, 1)
        asked.set()
        with pytest.raises(BrokerUnavailable, match="its queue is gone"):
            await some(source, 1)
        await some(source, 1)

    assert held.lost
    assert len(peer.conversations) == 3, "two to receive, and one for counted crashes"


async def test_what_waits_when_the_connection_is_lost_is_dropped() -> None:
    async def script(talk: Conversation) -> None:
        await talk.consumer()
        first = len(peer.conversations) == 1
        for tag in (1, 2, 3):
            talk.deliver(tag, b"{}", properties_of(f"{tag}" if first else f"{tag} again"))
        if first:
            await asked.wait()
            return
        await talk.read()

    asked = asyncio.Event()
    async with receiving(script) as (peer, source):
        [held] = await some(source, 1)
        asked.set()
        while not held.lost:  # noqa: ASYNC110 - it is a fact, not an event
            await asyncio.sleep(0.001)
        found = await some(source, 3)

    names = [each.envelope.aggregate_id for each in found if each.envelope]
    assert names == ["1 again", "2 again", "3 again"]


async def test_cancelled_call_leaves_no_answer_behind() -> None:
    async def script(talk: Conversation) -> None:
        first = len(peer.conversations) == 1
        await talk.consumer(let_in=not first)
        if first:
            asked.set()
        else:
            talk.deliver(1, b"{}", properties_of())
        await talk.read()

    asked = asyncio.Event()
    async with receiving(script) as (peer, source):
        call = asyncio.create_task(source.receive(1))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        peer.conversations[0].say(commands.Basic.ConsumeOk("us"))
        peer.conversations[0].deliver(1, b"{}", properties_of("late"))
        [found] = await some(source, 1)

    assert found.envelope is not None
    assert found.envelope.aggregate_id == "a"
    assert len(peer.conversations) == 3, "two to receive, and one for counted crashes"


async def test_source_that_nobody_answers_is_unavailable_at_the_deadline() -> None:
    async def script(talk: Conversation) -> None:
        await talk.reader.read()

    async with listening(script, greets=False) as peer:
        config = RabbitMQConfig(connect_timeout=timedelta(seconds=0.2))
        source = RabbitMQSource(peer.url, queue="billing", config=config)
        with pytest.raises(BrokerUnavailable, match="no answer in time"):
            await source.receive(1)
        await source.close()


async def test_dead_letter_has_room_for_its_reason() -> None:
    """In the smallest frames that AMQP knows, with headers that fill one, or make no sense."""
    full = Properties(headers={"x" * 100: "y" * 3_900}, message_id="m-1")
    letters: list[PeerMessage] = []

    async def script(talk: Conversation) -> None:
        if len(peer.conversations) == 1:
            await talk.consumer()
            talk.deliver(1, b"full", full)
            talk.deliver(2, b"senseless", Properties())
            await talk.read()
        async for letter in talk.messages():
            letters.append(letter)
            talk.ack(letter.tag)

    async with receiving(script, frame_max=4096) as (peer, source):
        found = await some(source, 2)
        found[1].message = found[1].message._replace(header=b"\x00\x3c")
        for delivery in found:
            await source.dead_letter(delivery, "ü" * 4_000)

    assert [letter.body for letter in letters[:2]] == [b"full", b"senseless"]
    for letter in letters[:2]:
        headers = letter.header.properties.headers or {}
        assert set(headers) == {
            f"dead-letter-{n}" for n in ("reason", "origin", "address", "group")
        }
        assert headers["dead-letter-reason"] == "ü" * 500
    assert letters[0].header.properties.message_id == "m-1"


MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
DECIMALS = st.integers(0, 999).map(lambda number: Decimal(number).scaleb(-2))
INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(width=32) | DECIMALS
    | st.text() | MOMENTS | st.binary().map(bytearray),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.text(max_size=30)


@given(headers=st.dictionaries(NAMES, VALUES), message_id=st.none() | st.text(max_size=60))
def test_properties_of_any_producer_are_passed_on_unchanged(
    headers: dict[str, Any], message_id: str | None
) -> None:
    found = Properties("text/plain", None, headers, 2, 7, None, "back", "9", message_id)
    marshalled = frame.marshal(header.ContentHeader(0, 5, found), 1)[7:-1]

    properties = read_properties(marshalled)
    table = encode.field_table(headers)

    assert write_header(properties, 5) == marshalled
    assert write_table(read_table(table)) == table
    for name, value in read_table(table).items():
        if isinstance(headers[name.decode()], str):
            assert value_as_text(value) == headers[name.decode()]


@given(junk=st.binary(max_size=200))
def test_unreadable_properties_are_a_problem_and_no_crash(junk: bytes) -> None:
    content = struct.pack(">HHQ", 60, 0, 0)

    for raw in (junk, content + junk, content + b"\x20\x00" + junk):
        found = to_delivery(Message(1, False, b"", b"", raw, b"canary"))
        assert found.envelope is None
        assert found.problem
        assert "canary" not in found.problem


def test_deeply_nested_header_is_passed_over() -> None:
    nested = b""
    for _ in range(20_000):
        nested = b"A" + struct.pack(">I", len(nested)) + nested
    found = properties_of().headers or {}
    table = read_table(encode.field_table(found)) | {b"ce-userid": nested}
    raw = write_header({1 << 13: write_table(table)}, 2)

    delivery = to_delivery(Message(1, False, b"", b"", raw, b"{}"))

    assert delivery.envelope is not None
    assert delivery.envelope.metadata.user_id is None


def test_deeply_nested_body_is_a_problem_and_no_crash() -> None:
    found = Properties("application/cloudevents+json")
    raw = frame.marshal(header.ContentHeader(0, 5, found), 1)[7:-1]
    nested = b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    assert to_delivery(Message(1, False, b"", b"", raw, nested)).problem


def test_printed_delivery_shows_no_payload() -> None:
    message = Message(1, False, b"", b"", b"canary", b"canary")

    assert "canary" not in repr(to_delivery(message))


def plan_of(
    queue: Queue | None, letters: str | None = None, *, ordered: bool = True
) -> list[QueuePlan]:
    topology = Topology(queues=(queue,)) if queue else Topology()
    return queue_plans("billing", topology, letters, ordered=ordered)


def declared(plan: QueuePlan) -> list[str]:
    return [
        f"{method.name} {getattr(method, 'queue', '') or method.exchange}"  # type: ignore[attr-defined]
        for method in plan.declarations
        if not isinstance(method, commands.Queue.Bind)
    ]


def test_unknown_queue_is_first_taken_for_one_with_a_single_active_consumer() -> None:
    ordered = plan_of(None)
    shared = plan_of(None, ordered=False)

    assert [plan.exclusive for plan in ordered] == [False, True]
    assert [plan.exclusive for plan in shared] == [False]
    assert declared(shared[0]) == [
        "Queue.Declare billing",
        "Queue.Declare billing.dlq",
        "Queue.Declare billing.crashes",
    ]


def test_described_queue_is_declared_as_it_is() -> None:
    single = Queue("billing", (Binding("shop"), Binding("amq.topic")), single_active_consumer=True)
    named = Queue("billing", arguments={"x-single-active-consumer": True})
    plain = Queue("billing")

    assert [plan.exclusive for plan in plan_of(single)] == [False]
    assert [plan.exclusive for plan in plan_of(named)] == [False]
    assert [plan.exclusive for plan in plan_of(plain)] == [True]
    assert declared(plan_of(single)[0])[0] == "Exchange.Declare shop"


def test_quorum_queue_needs_a_single_active_consumer_for_order() -> None:
    quorum = Queue("billing", kind="quorum")

    with pytest.raises(ConfigurationError, match="single_active_consumer=True"):
        plan_of(quorum)
    assert plan_of(quorum, ordered=False)


@pytest.mark.parametrize(
    ("queue", "letters", "expected"),
    [
        (Queue("billing"), None, ("", "billing.dlq")),
        (Queue("billing"), "dead", ("dead", None)),
        (Queue("billing", dead_letter_exchange="own"), None, ("own", None)),
        (Queue("billing", dead_letter_exchange="own"), "dead", ("dead", None)),
        (
            Queue(
                "billing",
                arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
            ),
            None,
            ("", "k"),
        ),
    ],
)
def test_dead_letters_go_where_setting_queue_or_default_say(
    queue: Queue, letters: str | None, expected: tuple[str, str | None]
) -> None:
    [plan] = plan_of(queue, letters)

    assert (plan.dead_letter_exchange, plan.dead_letter_key) == expected
    assert ("Queue.Declare billing.dlq" in declared(plan)) == (expected[1] == "billing.dlq")
    assert (f"Exchange.Declare {expected[0]}" in declared(plan)) == bool(expected[0])


def test_exchange_of_the_topology_is_not_only_checked() -> None:
    topology = Topology(
        (Exchange("own", "fanout"),), (Queue("billing", dead_letter_exchange="own"),)
    )

    [plan] = queue_plans("billing", topology, None, ordered=True)
    found: list[base.Frame] = [
        m for m in plan.declarations if isinstance(m, commands.Exchange.Declare)
    ]

    assert [(m.exchange_type, m.passive) for m in found] == [("fanout", False)]  # type: ignore[attr-defined]


def test_source_prints_without_user_and_password() -> None:
    source = RabbitMQSource("amqp://admin:s3cret@host/shop", queue="billing")

    assert repr(source) == "<RabbitMQSource amqp://host:5672/shop queue 'billing'>"
    assert isinstance(source, EventSource)


def test_bad_settings_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="RabbitMQConfig: prefetch must be positive"):
        RabbitMQConfig(prefetch=0)
    with pytest.raises(ConfigurationError, match="prefetch must be at most 65535"):
        RabbitMQConfig(prefetch=70_000)
    with pytest.raises(ConfigurationError, match="needs a name"):
        RabbitMQSource("amqp://host/", "")
    with pytest.raises(ConfigurationError, match="dead_letters needs the name of an exchange"):
        RabbitMQSource("amqp://host/", "q", dead_letters="")

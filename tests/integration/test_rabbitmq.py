"""RabbitMQPublisher on a real broker: what arrives, what is refused, what is explained."""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from examples.messaging.topology import messaging_topology
from outrider import BrokerUnavailable, ConfigurationError, EventEnvelope, EventMetadata
from outrider.brokers import PublishFailed
from outrider.brokers.rabbitmq import (
    Binding,
    Exchange,
    Queue,
    RabbitMQConfig,
    RabbitMQPublisher,
    Topology,
)
from outrider.outcomes import ACCEPTED, Accepted, Deferred, Outcome, Refused, Unknown
from outrider.testing.services import RabbitMQ, Services
from tests.support.brokers.events import event
from tests.support.brokers.rabbitmq_admin import (
    add_user,
    allow_topic,
    close_connections,
    set_max_message_size,
)
from tests.support.brokers.rabbitmq_queues import (
    assert_accepted_are_a_prefix,
    kinds,
    messages_in,
    one_queue,
    outcomes_of,
    publishing,
    unique,
)
from tests.support.canary import CANARY


@pytest.fixture
def url(services: Services) -> str:
    return services.rabbitmq.url


async def test_message_carries_the_seeds_properties_and_cloudevents_headers(url: str) -> None:
    name = unique()
    sent = event("bestellung-ä→ß", data='{"text":"ünï"}'.encode()).with_metadata(
        EventMetadata(correlation_id="c-1", user_id="ü-7")
    )

    async with publishing(url, name) as publisher:
        await publisher.publish(sent)
    [found] = await messages_in(url, name)

    assert found.body == sent.data
    assert (found.routing_key, found.type) == ("order.placed", "order.placed")
    assert found.message_id == str(sent.event_id)
    assert found.content_type == "application/json"
    assert found.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert found.timestamp == sent.occurred_at.replace(microsecond=0)
    own = {name: found.headers[name] for name in found.headers if not name.startswith("ce-")}
    assert own == {
        "aggregate_type": "order",
        "aggregate_id": "bestellung-ä→ß",
        "event_type": "order.placed",
        "created_at": sent.occurred_at.isoformat(),
    }
    assert found.headers["ce-subject"] == "bestellung-ä→ß"
    assert found.headers["ce-userid"] == "ü-7"


async def test_official_cloudevents_sdk_reads_the_message(url: str) -> None:
    name = unique()
    sent = event("o-1", data=b'{"total":3}')

    async with publishing(
        url, name, config=RabbitMQConfig(cloudevents_source="/shop")
    ) as publisher:
        await publisher.publish(sent)
    [found] = await messages_in(url, name)

    headers = {key: str(value) for key, value in found.headers.items()}
    message = RabbitMQMessage(headers=headers, content_type=found.content_type, body=found.body)
    read = from_binary(message, JSONFormat())
    assert (read.get_id(), read.get_type()) == (str(sent.event_id), "order.placed")
    assert (read.get_source(), read.get_subject()) == ("/shop", "o-1")
    assert read.get_time() == sent.occurred_at
    assert read.get_data() == {"total": 3}


async def test_messaging_topology_routes_like_the_seed_and_is_declared_again(url: str) -> None:
    exchange = unique()
    topology = messaging_topology(exchange, audit=True)
    types = ["group_message.queued", "scheduled_message.due", "other.thing"]

    for _ in range(2):
        async with publishing(url, exchange, topology) as publisher:
            await publisher.publish_all([event(kind, kind) for kind in types])

    counts = {q.name: len(await messages_in(url, q.name)) for q in topology.queues}
    assert counts == {
        f"{exchange}.dlq": 0,
        "group_message_processing": 2,
        "scheduled_message_processing": 2,
        f"{exchange}_audit": 6,
    }


async def test_rejected_message_reaches_the_dead_letter_queue(url: str) -> None:
    name, dead = unique(), unique("dead")
    topology = Topology(
        (Exchange(name), Exchange(dead)),
        (Queue(name, (Binding(name),), dead_letter_exchange=dead), Queue(dead, (Binding(dead),))),
    )
    async with publishing(url, name, topology) as publisher:
        await publisher.publish(event())

    async with await aio_pika.connect(url) as connection:
        queue = await (await connection.channel()).get_queue(name)
        message = await queue.get()
        assert message is not None
        await message.reject()

    assert len(await messages_in(url, dead)) == 1


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_batch_over_many_aggregates_arrives_in_order_once(url: str, kind: str) -> None:
    name = unique()
    batch = [event(f"a{number % 97}") for number in range(500)]

    async with publishing(url, name, one_queue(name, kind=kind)) as publisher:
        await publisher.publish_all(batch)

    assert order_of(await messages_in(url, name)) == order_sent(batch)


def order_of(messages: list[aio_pika.abc.AbstractIncomingMessage]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for message in messages:
        found[str(message.headers["aggregate_id"])].append(str(message.message_id))
    return found


def order_sent(batch: list[EventEnvelope]) -> dict[str, list[str]]:
    sent = defaultdict(list)
    for envelope in batch:
        sent[envelope.aggregate_id].append(str(envelope.event_id))
    return sent


@pytest.mark.fault("B6")
async def test_unroutable_event_waits_and_holds_back_only_its_aggregate(url: str) -> None:
    name = unique()
    topology = Topology(queues=(Queue(name, (Binding(name, "known.*"),)),))
    batch = [event("a", "known.x"), event("a", "lost.x"), event("a", "known.x")]
    batch.append(event("b", "known.x"))

    async with publishing(url, name, topology) as publisher:
        outcomes = await outcomes_of(publisher, batch)

    assert kinds(outcomes) == [Accepted, Deferred, Unknown, Accepted]
    assert outcomes[1] == Deferred(
        f"unroutable: NO_ROUTE, exchange {name!r} has no queue for 'lost.x': "
        "bind a queue to it, or set mandatory=False to drop such events"
    )
    assert isinstance(outcomes[2], Unknown)
    assert "held back" in outcomes[2].reason
    assert len(await messages_in(url, name)) == 2


async def test_event_that_nobody_reads_is_dropped_if_it_is_not_mandatory(url: str) -> None:
    name = unique()
    topology = Topology(queues=(Queue(name, (Binding(name, "known.*"),)),))

    async with publishing(f"{url}?mandatory=no", name, topology) as publisher:
        await publisher.publish_all([event("a", "lost.x"), event("a", "known.x")])

    assert [message.type for message in await messages_in(url, name)] == ["known.x"]


@pytest.mark.parametrize("kind", ["queue", "exchange"])
async def test_deleted_part_of_the_topology_is_declared_again_by_the_publisher(
    url: str, kind: str
) -> None:
    # given
    name = unique()
    async with publishing(url, name) as publisher:
        await publisher.publish(event("a"))
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            delete = channel.queue_delete if kind == "queue" else channel.exchange_delete
            await delete(name)

        # when
        late = event("a")
        noticed = await outcomes_of(publisher, [late])
        after = await outcomes_of(publisher, [late])

    # then
    assert kinds(noticed) == [Deferred if kind == "queue" else Unknown]
    assert after == [ACCEPTED]
    assert [each.message_id for each in await messages_in(url, name)][-1] == str(late.event_id)


async def test_refusal_ends_the_call_long_before_the_publish_timeout(url: str) -> None:
    name = unique()
    topology = Topology(queues=(Queue(name, (Binding(name, "known.*"),)),))
    config = RabbitMQConfig(publish_timeout=timedelta(seconds=60))
    batch = [event("a", kind) for kind in ("known.x", "lost.x", *["known.x"] * 20)]

    async with publishing(url, name, topology, config) as publisher:
        await publisher.open()
        async with asyncio.timeout(10):
            outcomes = await outcomes_of(publisher, batch)

    assert kinds(outcomes) == [Accepted, Deferred, *[Unknown] * 20]


@pytest.mark.fault("B5")
async def test_accepted_are_a_prefix_in_random_batches_with_a_queue_that_refuses(url: str) -> None:
    name, full = unique(), unique("full")
    topology = Topology(
        queues=(
            Queue(name, (Binding(name, "good.*"),)),
            Queue(full, (Binding(name, "bad.*"),), max_length=1),
        )
    )
    dice, seen, reasons = random.Random(5), set[type[Outcome]](), set[str]()
    accepted: list[EventEnvelope] = []
    numbers = iter(range(1000))

    async def some(publisher: RabbitMQPublisher) -> None:
        for number in numbers:
            kinds_drawn = dice.choices(["good.x", "bad.x", "lost.x"], [10, 1, 1], k=6)
            batch = [event(f"{number}-{dice.randrange(3)}", kind) for kind in kinds_drawn]
            outcomes = await outcomes_of(publisher, batch)
            assert_accepted_are_a_prefix(batch, outcomes)
            seen.update(kinds(outcomes))
            reasons.update(o.reason[:6] for o in outcomes if isinstance(o, Deferred))
            pairs = zip(batch, outcomes, strict=True)
            accepted.extend(e for e, o in pairs if o == ACCEPTED and e.event_type == "good.x")

    async with publishing(url, name, topology) as publisher:
        await outcomes_of(publisher, [event(f"fill-{n}", "bad.x") for n in range(5)])
        await asyncio.gather(*(some(publisher) for _ in range(16)))

    assert seen == {Accepted, Deferred, Unknown}
    assert reasons == {"nacked", "unrout"}
    assert order_of(await messages_in(url, name)) == order_sent(accepted)


async def test_large_and_empty_events_arrive_unchanged(url: str) -> None:
    name = unique()
    batch = [event("a", data=b"x" * 1_000_000), event("b", data=b""), event("c", data=b"{}")]

    async with publishing(url, name) as publisher:
        await publisher.publish_all(batch)

    assert {m.body for m in await messages_in(url, name)} == {e.data for e in batch}


@pytest.mark.fault("B8")
async def test_event_too_large_is_refused_and_spoils_only_one_batch(
    services: Services,
) -> None:
    name, server = unique(), services.victim("rabbitmq")
    assert isinstance(server, RabbitMQ)
    set_max_message_size(server, 1000)
    try:
        async with publishing(server.url, name) as publisher:
            large = event("large", data=b"x" * 2000)
            first = await outcomes_of(publisher, [large, event("b")])
            second = await outcomes_of(publisher, [large, event("b"), event("large")])
    finally:
        set_max_message_size(server, 134_217_728)

    assert isinstance(first[0], Refused)
    assert "message size 2000 is larger" in first[0].reason
    assert kinds(second) == [Refused, Accepted, Unknown]


async def test_event_over_the_configured_size_is_refused_alone(url: str) -> None:
    name = unique()
    config = RabbitMQConfig(max_message_size=1000)

    async with publishing(url, name, config=config) as publisher:
        outcomes = await outcomes_of(publisher, [event("a", data=b"x" * 1001), event("b")])

    assert kinds(outcomes) == [Refused, Accepted]


@pytest.mark.fault("B7")
async def test_exchange_deleted_while_running_is_declared_again(url: str) -> None:
    name = unique()
    async with publishing(url, name) as publisher:
        await publisher.publish(event())
        async with await aio_pika.connect(url) as connection:
            await (await connection.channel()).exchange_delete(name)
        while_gone = await outcomes_of(publisher, [event(), event("b")])
        after = await outcomes_of(publisher, [event(), event("b")])

    assert kinds(while_gone) == [Unknown, Unknown]
    assert all(
        isinstance(o, Unknown) and isinstance(o.error, BrokerUnavailable) for o in while_gone
    )
    assert after == [ACCEPTED, ACCEPTED]
    assert len(await messages_in(url, name)) == 3


async def test_connection_closed_by_the_broker_is_opened_again(
    services: Services, url: str
) -> None:
    name = unique()
    async with publishing(url, name) as publisher:
        await publisher.publish(event())
        close_connections(services.rabbitmq)
        first = await outcomes_of(publisher, [event()])
        second = await outcomes_of(publisher, [event()])

    # The loop stood still meanwhile, so the first call met a connection that was closed already.
    assert kinds(first) == [Unknown]
    assert second == [ACCEPTED]
    assert len(await messages_in(url, name)) == 2


async def test_wrong_exchange_type_is_one_clear_error(url: str) -> None:
    name = unique()
    direct = Topology((Exchange(name, "direct"),))
    async with publishing(url, name, direct) as publisher:
        await publisher.open()

    async with publishing(url, name, Topology()) as publisher:
        with pytest.raises(ConfigurationError, match="received 'topic' but current is 'direct'"):
            await publisher.open()
        [outcome] = await outcomes_of(publisher, [event()])

    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, ConfigurationError)


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology((Exchange("amq.odd", "nonsense"),)), "nonsense"),
        (Topology(queues=(Queue("amq.reserved"),)), "amq.reserved"),
        (Topology(queues=(Queue("dangling", (Binding("no such"),)),)), "no such"),
        (Topology((Exchange("not there", passive=True),)), "not there"),
    ],
)
async def test_topology_that_can_never_be_declared_is_explained(
    url: str, topology: Topology, words: str
) -> None:
    async with publishing(url, unique(), topology) as publisher:
        with pytest.raises(ConfigurationError, match=words):
            await publisher.open()


def replaced(url: str, **parts: str) -> str:
    found = urlsplit(url)
    user, password = parts.get("user", found.username), parts.get("password", found.password)
    vhost = parts.get("vhost", found.path[1:])
    return f"amqp://{user}:{password}@{found.hostname}:{found.port}/{vhost}"


@pytest.mark.fault("B15")
async def test_bad_credentials_and_unknown_vhost_are_explained_without_the_password(
    url: str,
) -> None:
    for bad in (replaced(url, password=CANARY), replaced(url, vhost="no-such-vhost")):
        with pytest.raises(ConfigurationError) as caught:
            await RabbitMQPublisher(bad).open()
        secret = urlsplit(bad).password or ""
        assert secret not in repr(caught.value) + repr(caught.value.__cause__)
        assert "ACCESS_REFUSED" in str(caught.value) or "no-such-vhost" in str(caught.value)


async def test_nobody_listening_is_broker_unavailable() -> None:
    publisher = RabbitMQPublisher(f"amqp://user:{CANARY}@127.0.0.1:1/")

    with pytest.raises(BrokerUnavailable) as caught:
        await publisher.open()
    with pytest.raises(PublishFailed) as failed:
        await publisher.publish_all([event(), event("b")])

    assert CANARY not in str(caught.value)
    assert all(
        isinstance(outcome, Unknown) and isinstance(outcome.error, BrokerUnavailable)
        for outcome in failed.value.outcomes
    )


@pytest.fixture(scope="module")
def limited(services: Services) -> tuple[str, str]:
    """A user who may write to one exchange and there only one topic, and that exchange's name."""
    server, user, name = services.rabbitmq, unique("user"), unique("allowed")
    add_user(server, user, CANARY, configure="^$", write=f"^{name}$", read="^$")
    allow_topic(server, user, name, write="^open", read="^$")
    return replaced(server.url, user=user, password=CANARY), name


async def test_missing_permission_is_one_clear_error(limited: tuple[str, str], url: str) -> None:
    theirs, name = limited
    async with publishing(theirs, name, Topology()) as publisher:
        with pytest.raises(ConfigurationError, match="ACCESS_REFUSED") as caught:
            await publisher.open()
    assert CANARY not in str(caught.value)

    other = unique()
    async with publishing(url, other) as ours:
        await ours.open()
    async with publishing(theirs, other, Topology((Exchange(other, passive=True),))) as publisher:
        [outcome] = await outcomes_of(publisher, [event()])
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, ConfigurationError)
    assert f"access to exchange '{other}'" in outcome.reason


@pytest.mark.fault("B15")
async def test_topic_without_permission_is_refused_and_the_rest_flows(
    limited: tuple[str, str], url: str
) -> None:
    theirs, name = limited
    async with publishing(url, name) as ours:
        await ours.open()
    async with publishing(theirs, name, Topology((Exchange(name, passive=True),))) as publisher:
        forbidden = await outcomes_of(publisher, [event("a", "secret.x"), event("b", "open.x")])
        allowed = await outcomes_of(publisher, [event("b", "open.x")])

    assert isinstance(forbidden[0], Refused)
    assert "secret.x" in forbidden[0].reason
    assert allowed == [ACCEPTED]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("IP:127.0.0.1", "DNS:elsewhere.example"):
        make_certificate(folder, name)
    return folder


def make_certificate(folder: Path, name: str) -> None:
    stem = folder / name.partition(":")[2]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", f"subjectAltName={name}", "-keyout", f"{stem}.key", "-out", f"{stem}.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


@asynccontextmanager
async def tls_in_front_of(url: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """The URL of a proxy that ends TLS and passes everything on."""
    found, tasks = urlsplit(url), set[asyncio.Task[None] | None]()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection(found.hostname, found.port)
        await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"amqps://{found.username}:{found.password}@127.0.0.1:{port}{found.path}"
    finally:
        server.close()
        if tasks:
            await asyncio.wait([task for task in tasks if task], timeout=5)


def server_side(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


async def test_tls_with_own_authority_and_client_certificate(url: str, certificates: Path) -> None:
    name, ours = unique(), "127.0.0.1"
    context = server_side(certificates, ours)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates / f"{ours}.pem")
    config = RabbitMQConfig(
        ca_file=certificates / f"{ours}.pem",
        client_certificate=certificates / f"{ours}.pem",
        client_key=certificates / f"{ours}.key",
    )

    files = f"client_certificate={certificates}/{ours}.pem&client_key={certificates}/{ours}.key"
    query = f"?heartbeat=20&ca_file={certificates}/{ours}.pem&{files}"

    async with tls_in_front_of(url, context) as proxy:
        async with publishing(proxy, name, config=config) as publisher:
            await publisher.publish_all([event(str(n), data=b"x" * 9000) for n in range(200)])
        async with publishing(proxy + query, name) as publisher:
            await publisher.publish(event())

    assert len(await messages_in(url, name)) == 201


@pytest.mark.parametrize(
    ("shown", "trusted"),
    [("elsewhere.example", "elsewhere.example"), ("127.0.0.1", None)],
    ids=["wrong name", "unknown authority"],
)
async def test_certificate_that_proves_nothing_is_refused(
    url: str, certificates: Path, shown: str, trusted: str | None
) -> None:
    config = RabbitMQConfig(ca_file=certificates / f"{trusted}.pem" if trusted else None)

    async with (
        tls_in_front_of(url, server_side(certificates, shown)) as proxy,
        publishing(proxy, unique(), config=config) as publisher,
    ):
        with pytest.raises(ConfigurationError, match="certificate is not trusted"):
            await publisher.open()


async def test_plain_port_is_no_tls(url: str) -> None:
    config = RabbitMQConfig(connect_timeout=timedelta(seconds=2))
    publisher = RabbitMQPublisher(url.replace("amqp://", "amqps://"), config=config)

    with pytest.raises(ConfigurationError, match="no TLS"):
        await publisher.open()

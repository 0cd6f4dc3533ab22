"""RedisPublisher on a real server: what arrives, what is refused, what is explained."""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from redis.asyncio import Redis

from outrider import BrokerUnavailable, ConfigurationError, EventEnvelope, EventMetadata
from outrider.brokers import PublishFailed
from outrider.brokers.redis import RedisConfig, RedisPublisher
from outrider.brokers.redis.connection import ConnectionPool
from outrider.outcomes import ACCEPTED, Accepted, Deferred, Outcome, Refused, Unknown
from outrider.testing.conformance.events import event, events
from outrider.testing.conformance.sending import kinds, outcomes_of
from outrider.testing.services import Server, Services
from outrider.testing.services.ports import free_ports
from tests.support.brokers.redis_users import with_documented_rights, with_user
from tests.support.canary import CANARY
from tests.support.relay_environment import publisher_from

QUICK = RedisConfig(connect_timeout=timedelta(seconds=1), publish_timeout=timedelta(seconds=1))


@pytest.fixture
def url(services: Services) -> str:
    return services.redis.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(url) as client:
        yield client


@pytest.fixture
def stream() -> str:
    return f"events.{uuid4().hex}"


@pytest.fixture(scope="module")
def private(services: Services) -> Iterator[Server]:
    server = services.another("redis")
    yield server
    server.stop()


@pytest.fixture
async def admin(private: Server) -> AsyncIterator[Redis]:
    """Of a server that a test may hurt, and that is well again afterwards."""
    async with Redis.from_url(private.url) as client:
        yield client
        await client.replicaof("NO", "ONE")
        await client.config_set("maxmemory", 0)
        await client.config_set("min-replicas-to-write", 0)
        await client.flushall()


async def ids_in(client: Redis, stream: str) -> list[str]:
    return [fields[b"ce-id"].decode() for _, fields in await client.xrange(stream)]


def ids_of(envelopes: list[EventEnvelope]) -> list[str]:
    return [str(envelope.event_id) for envelope in envelopes]


def because_of(outcomes: list[Outcome], error: type[Exception]) -> bool:
    return all(isinstance(o, Unknown) and isinstance(o.error, error) for o in outcomes)


async def test_entry_has_cloudevents_fields_that_the_official_sdk_reads(
    url: str, client: Redis, stream: str
) -> None:
    sent = event("bestellung-ä→ß", {"text": "ünï"})

    async with RedisPublisher(
        url, stream=stream, config=RedisConfig(cloudevents_source="/shop")
    ) as publisher:
        await publisher.publish(sent)
    [(_, fields)] = await client.xrange(stream)

    found = {name.decode(): value.decode() for name, value in fields.items()}
    assert found == {
        "ce-specversion": "1.0",
        "ce-id": str(sent.event_id),
        "ce-source": "/shop",
        "ce-type": "order.placed",
        "ce-subject": "bestellung-ä→ß",
        "ce-time": sent.occurred_at.isoformat(),
        "ce-aggregatetype": "order",
        "ce-eventversion": "2",
        "content-type": "application/json",
        "data": sent.data.decode(),
    }
    body, kind = found.pop("data").encode(), found.pop("content-type")
    official = from_binary(
        RabbitMQMessage(headers=found, content_type=kind, body=body), JSONFormat()
    )
    assert (official.get_id(), official.get_subject()) == (str(sent.event_id), "bestellung-ä→ß")
    assert official.get_data() == {"text": "ünï"}


async def test_pattern_gives_every_aggregate_type_its_stream(
    url: str, client: Redis, stream: str
) -> None:
    batch = events(6, "a", "b")

    async with RedisPublisher(url, stream=stream + ".{aggregate_type}") as publisher:
        await publisher.publish_all(batch)

    assert await ids_in(client, f"{stream}.order") == ids_of(batch)


@pytest.mark.parametrize("pattern", ["", "x.{event_type}", "x.{}", "x.{aggregate_id!r}", "x.{"])
def test_pattern_that_would_tear_an_aggregate_apart_is_explained(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="aggregate_type"):
        RedisPublisher("redis://localhost", stream=pattern)


async def test_nothing_is_trimmed_unless_asked_for(url: str, client: Redis, stream: str) -> None:
    batch = events(3000)

    async with RedisPublisher(url, stream=stream) as publisher:
        await publisher.publish_all(batch)

    assert await ids_in(client, stream) == ids_of(batch)


async def test_stream_is_trimmed_by_length(url: str, client: Redis, stream: str) -> None:
    batch = events(3000)

    async with RedisPublisher(url, stream=stream, config=RedisConfig(max_length=500)) as publisher:
        await publisher.publish_all(batch)

    kept = await ids_in(client, stream)
    assert 500 <= len(kept) < 1000
    assert kept == ids_of(batch)[-len(kept) :]


async def test_stream_is_trimmed_by_age(url: str, client: Redis, stream: str) -> None:
    seconds, _ = await client.time()
    for age, number in ((7200, 1000), (60, 10)):
        for n in range(number):
            await client.xadd(stream, {"age": age}, id=f"{(seconds - age) * 1000}-{n + 1}")
    batch = events(3)
    config = RedisConfig(max_age=timedelta(hours=1))

    async with RedisPublisher(url, stream=stream, config=config) as publisher:
        await publisher.publish_all(batch)

    ages = [fields.get(b"age") for _, fields in await client.xrange(stream)]
    assert ages.count(b"7200") < 200
    assert ages[-13:] == [b"60"] * 10 + [None] * 3


async def test_event_over_the_configured_size_is_refused_alone(
    url: str, client: Redis, stream: str
) -> None:
    batch = [event("a", {"text": "x" * 1000}), event("b"), event("a")]

    async with RedisPublisher(
        url, stream=stream, config=RedisConfig(max_message_size=1000)
    ) as publisher:
        outcomes = await outcomes_of(publisher, batch)

    assert kinds(outcomes) == [Refused, Accepted, Unknown]
    assert outcomes[0] == Refused("not sendable: it has 1011 bytes, 1000 are allowed")
    assert await ids_in(client, stream) == ids_of(batch[1:2])


async def test_batch_of_many_megabytes_arrives_in_order(
    url: str, client: Redis, stream: str
) -> None:
    batch = [event(f"a{n % 7}", {"text": "x" * 100_000}) for n in range(100)]

    async with RedisPublisher(url, stream=stream) as publisher:
        await publisher.publish_all(batch)

    assert await ids_in(client, stream) == ids_of(batch)


@pytest.mark.fault("B12")
async def test_memory_that_comes_and_goes_leaves_no_gap_in_any_aggregate(
    private: Server, admin: Redis, stream: str
) -> None:
    dice, seen, sent = random.Random(7), set[type[Outcome]](), events(0)
    over = asyncio.Event()

    async def flicker() -> None:
        for limit in iter(lambda: 0 if over.is_set() else dice.choice((1, 1_000_000_000)), 0):
            await admin.config_set("maxmemory", limit)
            await asyncio.sleep(dice.random() / 200)
        await admin.config_set("maxmemory", 0)

    async with RedisPublisher(private.url, stream=stream) as publisher:
        flickering = asyncio.create_task(flicker())
        while seen != {Accepted, Unknown} or len(sent) < 5000:
            batch = [event(f"a{n % 5}", {"text": "x" * 1000}) for n in range(250)]
            while batch:
                outcomes = await outcomes_of(publisher, batch)
                seen.update(kinds(outcomes))
                pairs = list(zip(batch, outcomes, strict=True))
                sent += [e for e, o in pairs if o == ACCEPTED]
                batch = [e for e, o in pairs if o != ACCEPTED]
        over.set()
        await flickering

    assert await ids_in(admin, stream) == ids_of(sent)


async def refuse_memory(admin: Redis) -> None:
    await admin.config_set("maxmemory", 1)


async def become_read_only(admin: Redis) -> None:
    await admin.replicaof("127.0.0.1", "1")


async def miss_replicas(admin: Redis) -> None:
    await admin.config_set("min-replicas-to-write", 1)


@pytest.mark.fault("B12")
@pytest.mark.parametrize(
    ("hurt", "words"),
    [
        (refuse_memory, "maxmemory"),
        (become_read_only, "read only replica"),
        (miss_replicas, "NOREPLICAS"),
    ],
)
async def test_server_that_takes_nothing_for_now_costs_no_attempt(
    private: Server, admin: Redis, stream: str, hurt: object, words: str
) -> None:
    batch = events(4, "a", "b")
    async with RedisPublisher(private.url, stream=stream) as publisher:
        await hurt(admin)  # type: ignore[operator]
        during = await outcomes_of(publisher, batch)
        with suppress(BrokerUnavailable):
            await publisher.open()
        await admin.replicaof("NO", "ONE")
        await admin.config_set("maxmemory", 0)
        await admin.config_set("min-replicas-to-write", 0)
        after = await outcomes_of(publisher, batch)

    assert because_of(during, BrokerUnavailable)
    assert all(words in outcome.reason for outcome in during)  # type: ignore[union-attr]
    assert after == [ACCEPTED] * 4
    assert await ids_in(admin, stream) == ids_of(batch)


async def test_key_of_another_type_is_the_streams_fault_and_no_other_streams(
    url: str, client: Redis, stream: str
) -> None:
    batch = events(4, "bad", "good")
    await client.set(f"{stream}.bad", "a string")

    async with RedisPublisher(url, stream=stream + ".{aggregate_id}") as publisher:
        outcomes = await outcomes_of(publisher, batch)
        await client.delete(f"{stream}.bad")
        mended = await outcomes_of(publisher, batch[::2])

    assert kinds(outcomes[::2]) == [Deferred, Deferred]
    assert "WRONGTYPE" in str(outcomes[0])
    assert outcomes[1::2] == mended == [ACCEPTED] * 2
    assert await ids_in(client, f"{stream}.good") == ids_of(batch[1::2])


async def test_connection_closed_by_the_server_is_opened_again(
    private: Server, admin: Redis, stream: str
) -> None:
    batch = events(2)
    async with RedisPublisher(private.url, stream=stream) as publisher:
        await publisher.publish(batch[0])
        await admin.client_kill_filter(skipme=True, _type="normal")
        await only_connections(admin, 1)
        outcomes = await outcomes_of(publisher, batch[1:])

    assert outcomes == [ACCEPTED]
    assert await ids_in(admin, stream) == ids_of(batch)


async def only_connections(admin: Redis, most: int) -> None:
    async with asyncio.timeout(30):
        while await connections(admin) > most:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def connections(admin: Redis) -> int:
    return int((await admin.info("clients"))["connected_clients"])


@pytest.mark.fault("B3")
async def test_frozen_server_ends_at_the_deadline_and_what_was_given_up_is_dropped(
    private: Server, admin: Redis, stream: str
) -> None:
    before = sockets_to(private)
    # More than the sockets buffer, so that some of it waits in this process.
    batch = [event().with_metadata(EventMetadata(), data=b"x" * 15_000_000)]
    async with RedisPublisher(private.url, stream=stream, config=QUICK) as publisher:
        private.pause()
        try:
            frozen = await outcomes_of(publisher, batch)
            again = await outcomes_of(publisher, batch)
            async with asyncio.timeout(30):
                while sockets_to(private) > before:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
        finally:
            private.resume()
        thawed = await outcomes_of(publisher, last := events(1))

    assert because_of(frozen + again, BrokerUnavailable)
    assert thawed == [ACCEPTED]
    assert await ids_in(admin, stream) == ids_of(last)


def sockets_to(server: Server) -> int:
    found = psutil.Process().net_connections()
    return len([each for each in found if each.raddr and each.raddr.port == server.port])


@pytest.mark.fault("B10")
async def test_cancelled_calls_never_get_each_others_replies(url: str) -> None:
    pool, dice = ConnectionPool(url, RedisConfig()), random.Random(3)

    async def echo(number: int) -> bool:
        [said] = await pool.ask(("ECHO", number))
        return bool(said == str(number).encode())

    async def some(first: int) -> list[bool]:
        found = []
        for number in range(first, first + 200):
            call = asyncio.create_task(echo(number))
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            if dice.random() < 0.5:
                call.cancel()
            with suppress(asyncio.CancelledError):
                found.append(await call)
        return found

    answers = [
        found for each in await asyncio.gather(*map(some, range(0, 1600, 200))) for found in each
    ]
    await pool.close()

    assert 100 < len(answers) < 1600
    assert all(answers)


async def test_closing_makes_what_is_in_flight_unknown(private: Server, stream: str) -> None:
    publisher = RedisPublisher(private.url, stream=stream)
    await publisher.open()
    private.pause()
    try:
        call = asyncio.create_task(outcomes_of(publisher, events(3)))
        await asyncio.sleep(0.1)
        await publisher.close()
        outcomes = await call
    finally:
        private.resume()

    assert because_of(outcomes, BrokerUnavailable)
    assert because_of(await outcomes_of(publisher, events(1)), BrokerUnavailable)


async def test_bad_password_and_database_are_explained_without_the_password(url: str) -> None:
    bad = (with_user(url, "nobody", CANARY), with_user(url, "", CANARY), url + "99999")
    for each in bad:
        publisher = RedisPublisher(each)
        with pytest.raises(ConfigurationError) as caught:
            await publisher.open()
        shown = repr(publisher) + repr(caught.value) + repr(caught.value.__cause__)
        assert CANARY not in shown


async def test_tls_to_a_port_without_it_is_told_at_once_with_the_cure(url: str) -> None:
    publisher = RedisPublisher(url.replace("redis:", "rediss:"))

    with pytest.raises((BrokerUnavailable, ConfigurationError), match="does this port speak TLS?"):
        await publisher.open()
    await publisher.close()


@pytest.mark.fault("B15")
@pytest.mark.parametrize("missing", ["xadd", "multi"])
async def test_missing_permission_is_found_when_opening_and_nothing_is_added(
    url: str, client: Redis, stream: str, missing: str
) -> None:
    user = uuid4().hex
    await client.execute_command(
        "ACL", "SETUSER", user, "on", f">{CANARY}", "~*", "+@all", f"-{missing}"
    )
    publisher = RedisPublisher(with_user(url, user, CANARY), stream=stream)

    with pytest.raises(ConfigurationError, match=f"(?i)no permissions.*{missing}"):
        await publisher.open()
    outcomes = await outcomes_of(publisher, events(3))
    await publisher.close()

    assert because_of(outcomes, ConfigurationError)
    assert await client.exists(stream) == 0


async def test_documented_permissions_are_enough_to_publish(
    url: str, client: Redis, stream: str
) -> None:
    theirs = await with_documented_rights("relay", url, client, stream)

    async with RedisPublisher(theirs, stream=stream) as publisher:
        await publisher.publish_all(events(3))

    assert await client.xlen(stream) == 3


async def test_nobody_listening_is_broker_unavailable() -> None:
    publisher = RedisPublisher(f"redis://user:{CANARY}@127.0.0.1:1/")

    with pytest.raises(BrokerUnavailable) as caught:
        await publisher.open()
    with pytest.raises(PublishFailed) as failed:
        await publisher.publish_all(events(2))

    assert CANARY not in str(caught.value) + repr(publisher)
    assert because_of(list(failed.value.outcomes), BrokerUnavailable)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        f"amqp://user:{CANARY}@host/",
        f"redis://user:{CANARY}#@host/",
        f"redis://:1/{CANARY}@host/",
        f"redis://user:pass@host:{CANARY}/",
        f"redis://host/{CANARY}",
        f"redis://host/0?{CANARY}=1",
        f"redis://host/0?socket_timeout={CANARY}",
        f"redis://[{CANARY}/",
    ],
)
def test_bad_url_is_explained_without_repeating_it(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="bad Redis URL: ") as caught:
        RedisPublisher(bad)

    assert CANARY not in str(caught.value)


def test_all_bad_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisConfig(
            publish_timeout=timedelta(0),
            max_message_size=2**30,
            max_length=1,
            max_age=timedelta(days=1),
            takeover_after=timedelta(milliseconds=1),
            client_key=Path("key.pem"),
        )

    for name in ("publish_timeout", "max_message_size", "max_age", "takeover_after", "client_key"):
        assert name in str(caught.value)


@pytest.fixture
async def tls(private: Server, admin: Redis, tmp_path: Path) -> tuple[str, Path]:
    """The server's URL with TLS, and the folder of its certificate and key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    await asyncio.to_thread(
        subprocess.run,
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    [port] = free_ports(1)
    await admin.config_set(
        "tls-cert-file", str(certificate), "tls-key-file", str(key),
        "tls-ca-cert-file", str(certificate), "tls-auth-clients", "yes", "tls-port", port,
    )  # fmt: skip
    return f"rediss://127.0.0.1:{port}/0", tmp_path


async def test_tls_with_own_authority_and_client_certificate(
    tls: tuple[str, Path], admin: Redis, stream: str
) -> None:
    url, folder = tls
    authority = folder / "certificate.pem"
    config = RedisConfig(
        ca_file=authority, client_certificate=authority, client_key=folder / "key.pem"
    )

    async with RedisPublisher(url, stream=stream, config=config) as publisher:
        await publisher.publish_all(events(3))

    assert await admin.xlen(stream) == 3


async def test_own_ssl_context_decides_whom_to_trust(
    tls: tuple[str, Path], admin: Redis, stream: str
) -> None:
    url, folder = tls
    context = ssl.create_default_context(cafile=folder / "certificate.pem")
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")

    async with RedisPublisher(url, stream, config=RedisConfig(ssl_context=context)) as publisher:
        await publisher.publish_all(events(3))
    strangers = RedisConfig(ssl_context=ssl.create_default_context())
    with pytest.raises(ConfigurationError, match="certificate is not trusted"):
        await RedisPublisher(url, stream, config=strangers).open()

    assert await admin.xlen(stream) == 3


async def test_relay_needs_nothing_but_a_url_for_tls_and_a_user(
    tls: tuple[str, Path], admin: Redis, stream: str
) -> None:
    url, folder = tls
    await admin.execute_command("ACL", "SETUSER", "shop", "on", f">{CANARY}", "~*", "+@all")
    files = f"client_certificate={folder}/certificate.pem&client_key={folder}/key.pem"
    query = f"ca_file={folder}/certificate.pem&{files}&max_length=1000"
    publisher = publisher_from(f"{with_tls_user(url, 'shop', CANARY)}?{query}", stream)

    await publisher.open()
    await publisher.publish_all(events(3))
    await publisher.close()

    assert await admin.xlen(stream) == 3
    assert CANARY not in repr(publisher)


def with_tls_user(url: str, user: str, password: str) -> str:
    return url.replace("rediss://", f"rediss://{user}:{password}@", 1)


async def test_certificate_that_is_not_trusted_is_a_configuration_error(
    tls: tuple[str, Path],
) -> None:
    url, folder = tls
    trusted = RedisConfig(ca_file=folder / "certificate.pem")

    for bad, config in ((url, None), (url.replace("127.0.0.1", "localhost"), trusted)):
        with pytest.raises(ConfigurationError, match="certificate is not trusted"):
            await RedisPublisher(bad, config=config).open()


def test_certificates_that_cannot_be_used_are_explained_at_once(tmp_path: Path) -> None:
    missing = RedisConfig(ca_file=tmp_path / "none.pem")

    with pytest.raises(ConfigurationError, match="ca_file or certificate: No such file"):
        RedisPublisher("rediss://localhost", config=missing)
    with pytest.raises(ConfigurationError, match="need rediss"):
        RedisPublisher("redis://localhost", config=missing)
    with pytest.raises(ConfigurationError, match="ssl_ options behind the . exclude"):
        RedisPublisher("rediss://localhost?ssl_cert_reqs=none", config=missing)
    with pytest.raises(ConfigurationError, match="ssl_context excludes ca_file"):
        RedisConfig(ca_file=tmp_path / "none.pem", ssl_context=ssl.create_default_context())

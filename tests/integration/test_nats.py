"""NatsPublisher on a real server: what arrives, what is refused, what is explained."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from nats.js.api import DiscardPolicy

from outrider import (
    BrokerUnavailable,
    ConfigurationError,
    EventEnvelope,
    EventId,
    EventMetadata,
)
from outrider.brokers.nats import NatsConfig, NatsPublisher, NatsSource
from outrider.outcomes import Accepted, Refused, Unknown
from outrider.testing.services import Server, Services
from outrider.testing.services.ports import free_ports
from tests.support.brokers.events import event
from tests.support.brokers.nats_streams import (
    PASSWORD,
    Guarded,
    jetstream,
    kinds,
    messages_in,
    order_of,
    order_sent,
    outcomes_of,
    start_guarded,
    unique,
)
from tests.support.relay_environment import publisher_from

SHORT = NatsConfig(publish_timeout=timedelta(seconds=2), connect_timeout=timedelta(seconds=2))


@pytest.fixture
def url(services: Services) -> str:
    return services.nats.url


def publisher_to(url: str, name: str, config: NatsConfig | None = None) -> NatsPublisher:
    """A stream of that name, with subjects that begin with it."""
    return NatsPublisher(url, stream=name, subject=name, config=config)


async def test_message_carries_cloudevents_headers_in_ascii(url: str) -> None:
    name = unique()
    sent = event("bestellung-ä→ß 100%", data='{"text":"ünï"}'.encode()).with_metadata(
        EventMetadata(correlation_id="c-1", user_id='ü "7"')
    )

    async with publisher_to(url, name) as publisher:
        await publisher.publish(sent)
    [found] = await messages_in(url, name)

    assert found.subject == f"{name}.order.placed"
    assert found.data == sent.data
    assert found.headers == {
        "Nats-Msg-Id": f"{sent.event_id}:nats",
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": str(sent.event_id),
        "ce-source": "outrider",
        "ce-type": "order.placed",
        "ce-subject": "bestellung-%C3%A4%E2%86%92%C3%9F%20100%25",
        "ce-time": sent.occurred_at.isoformat(),
        "ce-aggregatetype": "order",
        "ce-eventversion": "1",
        "ce-correlationid": "c-1",
        "ce-userid": "%C3%BC%20%227%22",
    }


async def test_official_cloudevents_sdk_reads_the_message(url: str) -> None:
    name = unique()
    sent = event("o ä-1", data=b'{"total":3}')

    async with publisher_to(url, name, NatsConfig(cloudevents_source="/shop ä")) as publisher:
        await publisher.publish(sent)
    [found] = await messages_in(url, name)

    read = from_binary(HTTPMessage(found.headers, found.data), JSONFormat())
    assert (read.get_id(), read.get_type()) == (str(sent.event_id), "order.placed")
    assert (read.get_source(), read.get_subject()) == ("/shop ä", "o ä-1")
    assert read.get_time() == sent.occurred_at
    assert read.get_data() == {"total": 3}


async def test_repeated_event_is_accepted_and_stored_once(url: str) -> None:
    name = unique()
    batch = [event("a"), event("b"), event("a")]

    async with publisher_to(url, name) as first:
        await first.publish_all(batch)
        await first.publish_all(batch)
    async with publisher_to(url, name) as second:
        await second.publish_all(batch)

    assert order_of(await messages_in(url, name)) == order_sent(batch)
    assert len(await messages_in(url, name)) == 3


async def test_two_sinks_in_one_stream_both_get_the_event(url: str) -> None:
    name, sent = unique(), event()
    async with jetstream(url) as js:
        await js.add_stream(name=name, subjects=[f"{name}.>"])

    for sink in ("billing", "audit"):
        async with NatsPublisher(
            url, stream=name, subject=f"{name}.{sink}", config=NatsConfig(sink=sink)
        ) as publisher:
            await publisher.publish(sent)

    subjects = [message.subject for message in await messages_in(url, name)]
    assert subjects == [f"{name}.billing.order.placed", f"{name}.audit.order.placed"]


async def test_stream_is_created_as_configured_and_left_alone_later(url: str) -> None:
    name = unique()
    window = NatsConfig(duplicate_window=timedelta(seconds=30))

    for config in (window, NatsConfig()):
        async with publisher_to(url, name, config):
            pass

    async with jetstream(url) as js:
        created = (await js.stream_info(name)).config
    assert (created.storage, created.num_replicas) == ("file", 1)
    assert created.duplicate_window == 30
    assert created.subjects == [f"{name}.>"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"subjects": ["{0}.order.>", "{0}"]}, "it takes {0}.order.>, {0}, and not {0}.>"),
        ({"subjects": ["{0}.*"]}, "it takes {0}.*, and not {0}.>"),
        ({"subjects": ["{0}.>"], "no_ack": True}, "acknowledges nothing"),
    ],
    ids=["other words", "one word only", "no acknowledgements"],
)
async def test_stream_that_cannot_serve_is_a_mistake(
    url: str, settings: dict[str, Any], why: str
) -> None:
    name = unique()
    settings["subjects"] = [each.format(name) for each in settings["subjects"]]
    async with jetstream(url) as js:
        await js.add_stream(name=name, **settings)

    with pytest.raises(ConfigurationError) as caught:
        await publisher_to(url, name).open()

    assert why.format(name) in str(caught.value)


@pytest.mark.parametrize("pattern", ["{0}.>", "{0}.*.>"])
async def test_stream_with_more_subjects_serves_too(url: str, pattern: str) -> None:
    name, other = unique(), unique()
    async with jetstream(url) as js:
        await js.add_stream(name=name, subjects=[other, pattern.format(name)])

    async with NatsPublisher(url, stream=name, subject=f"{name}.shop") as publisher:
        await publisher.publish(event())

    assert len(await messages_in(url, name)) == 1


async def test_subjects_of_another_stream_are_a_mistake(url: str) -> None:
    name = unique()
    async with publisher_to(url, name):
        pass

    with pytest.raises(ConfigurationError, match="overlap"):
        await NatsPublisher(url, stream=unique(), subject=name).open()


async def test_replicas_without_a_cluster_are_a_mistake(url: str) -> None:
    with pytest.raises(ConfigurationError, match="replicas > 1 not supported"):
        await publisher_to(url, unique(), NatsConfig(replicas=3)).open()


@pytest.mark.fault("B8")
async def test_event_larger_than_the_server_allows_is_refused_alone(url: str) -> None:
    name = unique()
    batch = [event("a"), event("a", data=b"x" * 1_048_500), event("a"), event("b")]

    async with publisher_to(url, name) as publisher:
        outcomes = await outcomes_of(publisher, batch)

    assert kinds(outcomes) == [Accepted, Refused, Unknown, Accepted]
    assert isinstance(outcomes[1], Refused)
    assert "1048576 are allowed" in outcomes[1].reason


async def test_limit_of_the_stream_counts_headers_exactly(url: str) -> None:
    name = unique()
    async with publisher_to(url, name) as publisher:
        await publisher.publish(event(data=b""))
        async with jetstream(url) as js:
            stored = (await js.stream_info(name)).config
            [message] = await messages_in(url, name)
            lines = (len(n) + len(v) + 4 for n, v in message.headers.items())
            await js.update_stream(stored, max_msg_size=len("NATS/1.0\r\n\r\n") + sum(lines) + 100)
        limits_unknown = await outcomes_of(publisher, [event(data=b"x" * 101)])
        limits_known = await outcomes_of(
            publisher, [event("a", data=b"x" * 100), event("b", data=b"x" * 101)]
        )

    assert kinds(limits_unknown) == [Refused]
    assert "message size exceeds maximum allowed" in str(limits_unknown[0])
    assert kinds(limits_known) == [Accepted, Refused]
    assert "bytes with its headers" in str(limits_known[1])


async def test_event_larger_than_configured_is_refused_alone(url: str) -> None:
    name = unique()
    batch = [event("a"), event("a", data=b"x" * 5000), event("b")]

    async with publisher_to(url, name, NatsConfig(max_message_size=5000)) as publisher:
        outcomes = await outcomes_of(publisher, batch)

    assert kinds(outcomes) == [Accepted, Refused, Accepted]
    assert "5000 are allowed" in str(outcomes[1])
    assert len(await messages_in(url, name)) == 2


async def test_event_that_is_no_valid_text_is_refused_alone(url: str) -> None:
    name = unique()
    bad = event("a").with_metadata(EventMetadata(user_id="\ud800"))

    async with publisher_to(url, name) as publisher:
        outcomes = await outcomes_of(publisher, [bad, event("b")])

    assert kinds(outcomes) == [Refused, Accepted]
    assert "no valid Unicode text" in str(outcomes[0])


async def test_limit_raised_while_running_is_noticed(url: str) -> None:
    name, large = unique(), event(data=b"x" * 5000)
    async with jetstream(url) as js:
        stream = (await js.add_stream(name=name, subjects=[f"{name}.>"], max_msg_size=1000)).config

        async with publisher_to(url, name) as publisher:
            before = await outcomes_of(publisher, [large])
            await js.update_stream(stream, max_msg_size=10_000)
            after = await outcomes_of(publisher, [large])

    assert kinds(before + after) == [Refused, Accepted]


@pytest.mark.fault("B13")
async def test_full_stream_refuses_no_event(url: str) -> None:
    name = unique()
    async with jetstream(url) as js:
        stream = (
            await js.add_stream(
                name=name, subjects=[f"{name}.>"], max_msgs=2, discard=DiscardPolicy.NEW
            )
        ).config

        async with publisher_to(url, name) as publisher:
            batch = [event("a") for _ in range(4)]
            full = await outcomes_of(publisher, batch)
            await js.update_stream(stream, max_msgs=10)
            await publisher.publish_all(batch[2:])

    assert kinds(full) == [Accepted, Accepted, Unknown, Unknown]
    assert order_of(await messages_in(url, name)) == order_sent(batch)


@pytest.mark.fault("B7")
async def test_stream_deleted_while_running_is_created_again(url: str) -> None:
    name = unique()
    lost, later = event("a"), [event("a"), event("a")]

    async with publisher_to(url, name) as publisher, jetstream(url) as js:
        await publisher.publish(lost)
        await js.delete_stream(name)
        outcomes = await outcomes_of(publisher, later)
        await publisher.publish_all(later)

    assert kinds(outcomes) == [Unknown, Unknown]
    assert order_of(await messages_in(url, name)) == order_sent(later)


@pytest.mark.fault("B13")
async def test_stream_that_gave_its_subjects_to_another_is_no_acceptance(url: str) -> None:
    name, other = unique(), unique()

    async with publisher_to(url, name) as publisher, jetstream(url) as js:
        await publisher.publish(event())
        stream = (await js.stream_info(name)).config
        await js.update_stream(stream, subjects=[other])
        await js.add_stream(name=other, subjects=[f"{name}.>"])
        [went_astray] = await outcomes_of(publisher, [event()])
        [explained] = await outcomes_of(publisher, [event()])

    assert went_astray == Unknown("it went to another stream")
    assert isinstance(explained, Unknown)
    assert isinstance(explained.error, ConfigurationError)


@pytest.mark.parametrize(
    "event_type", ["a..b", ".a", "a.", "a b", "a\r\nPUB x 0\r\n", "a.*", "a.>"]
)
async def test_type_that_is_no_subject_is_refused(url: str, event_type: str) -> None:
    """From a row that nobody checked."""
    name = unique()
    bad = EventEnvelope.stored(
        EventId.new(), event_type, 1, "order", "a", datetime.now(UTC), b"{}", EventMetadata()
    )

    async with publisher_to(url, name) as publisher:
        outcomes = await outcomes_of(publisher, [bad, event("b")])

    assert kinds(outcomes) == [Refused, Accepted]
    assert [message.subject for message in await messages_in(url, name)] == [f"{name}.order.placed"]


@pytest.mark.fault("B3")
async def test_server_that_hangs_costs_a_deadline_and_no_order(services: Services) -> None:
    server, name = services.another("nats"), unique()
    batch = [event(f"a{number % 5}", data=b"x" * 50_000) for number in range(200)]

    async with publisher_to(server.url, name, SHORT) as publisher:
        await publisher.publish(batch[0])
        server.pause()
        try:
            hanging = await outcomes_of(publisher, batch[1:])
            still_hanging = await outcomes_of(publisher, batch[1:])
        finally:
            server.resume()
        left = batch[1:]
        async with asyncio.timeout(60):
            while left:
                outcomes = await outcomes_of(publisher, left)
                pairs = zip(left, outcomes, strict=True)
                left = [each for each, outcome in pairs if not isinstance(outcome, Accepted)]

    assert set(kinds(hanging + still_hanging)) == {Unknown}
    assert order_of(await messages_in(server.url, name)) == order_sent(batch)
    server.stop()


async def test_call_that_is_given_up_drops_the_connection(url: str) -> None:
    async with publisher_to(url, unique()) as publisher:
        before = await publisher._opened()
        call = asyncio.create_task(publisher.publish_all([event(str(n)) for n in range(1000)]))
        while not before._waiting:  # noqa: ASYNC110 - it takes a few turns
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        after = await publisher._opened()

    assert call.cancelled()
    assert before.connection.lost
    assert after is not before


async def test_closing_does_not_wait_for_a_server_that_hangs(services: Services) -> None:
    server = services.another("nats")
    publisher = publisher_to(server.url, unique())
    await publisher.open()

    server.pause()
    try:
        call = asyncio.create_task(publisher.publish_all([event(data=b"x" * 500_000)] * 50))
        await asyncio.sleep(0)
        async with asyncio.timeout(8):
            await publisher.close()
            await asyncio.wait({call})
    finally:
        server.stop()

    assert call.exception() is not None


async def test_any_server_of_the_list_will_do(url: str) -> None:
    name = unique()
    down = [f"nats://127.0.0.1:{port}" for port in free_ports(2)]

    for urls in ([*down, url], ",".join([down[0], url, down[1]])):
        async with NatsPublisher(urls, stream=name, subject=name) as publisher:
            await publisher.publish(event())

    assert len(await messages_in(url, name)) == 2


async def test_server_that_is_away_is_unavailable() -> None:
    publisher = NatsPublisher([f"nats://127.0.0.1:{port}" for port in free_ports(2)])

    with pytest.raises(BrokerUnavailable, match="Connect"):
        await publisher.open()


@pytest.fixture(scope="module")
def guarded(services: Services) -> Iterator[Guarded]:
    server = start_guarded(services)
    yield server
    server.stop()


async def test_password_is_decoded_and_never_shown(guarded: Guarded) -> None:
    config = NatsConfig(cloudevents_source="x")
    publisher = NatsPublisher(guarded.url_of("app"), stream=unique(), subject="p", config=config)
    source = NatsSource(guarded.url_of("app"), stream=unique(), group="g")

    async with publisher:
        await publisher.publish(event())
    with pytest.raises(BrokerUnavailable) as missing:
        await source.open()

    for shown in (repr(publisher), str(source), str(missing.value)):
        assert "127.0.0.1" in shown
        assert PASSWORD not in shown
        assert "p%40ss" not in shown


@pytest.mark.parametrize("user", ["app:wrong", "nobody:x", "a-token", ""])
async def test_wrong_login_is_a_mistake(guarded: Guarded, user: str) -> None:
    login = f"{user}@" if user else ""

    with pytest.raises(ConfigurationError, match="Authorization Violation") as caught:
        await NatsPublisher(f"nats://{login}{guarded.address}").open()

    assert "wrong" not in str(caught.value)


async def test_nkey_logs_in(services: Services, tmp_path: Path) -> None:
    nkeys = pytest.importorskip("nkeys")
    seeds = [nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER) for _ in range(2)]

    class ByKey(Guarded):
        users = [{"nkey": nkeys.from_seed(bytearray(seeds[0])).public_key.decode()}]

    server, path = start_guarded(services, ByKey), tmp_path / "seed"
    publisher = NatsPublisher(f"nats://{server.address}", config=NatsConfig(nkey_seed=path))
    with pytest.raises(ConfigurationError, match="No such file"):
        await publisher.open()
    path.write_bytes(seeds[1])
    with pytest.raises(ConfigurationError, match="Authorization Violation"):
        await publisher.open()
    path.write_bytes(seeds[0])
    async with publisher:
        await publisher.publish(event())
    server.stop()


@pytest.mark.fault("B15")
async def test_subject_without_permission_is_refused_with_the_reason(guarded: Guarded) -> None:
    async with NatsPublisher(guarded.url_of("app")):
        pass

    async with NatsPublisher(guarded.url_of("few"), config=SHORT) as publisher:
        outcomes = await outcomes_of(publisher, [event("a", "ok"), event("b"), event("c", "ok")])

    assert kinds(outcomes) == [Accepted, Refused, Accepted]
    assert 'permissions violation for publish to "events.order.placed"' in str(outcomes[1])


async def test_stream_without_permission_is_a_mistake(guarded: Guarded) -> None:
    config = NatsConfig(request_timeout=timedelta(seconds=1))

    with pytest.raises(ConfigurationError, match="permissions violation"):
        await NatsPublisher(guarded.url_of("none"), config=config).open()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority of its own, for the loopback address; with its key beside it."""
    stem = tmp_path_factory.mktemp("tls") / "server"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{stem}.key", "-out", f"{stem}.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return stem.with_suffix(".pem")


@pytest.fixture(scope="module")
def encrypted(services: Services, certificate: Path) -> Iterator[Guarded]:
    class Encrypted(Guarded):
        pass

    Encrypted.certificate = certificate
    server = start_guarded(services, Encrypted)
    yield server
    server.stop()


async def test_tls_with_own_authority(encrypted: Guarded, certificate: Path) -> None:
    config = NatsConfig(ca_file=certificate)

    async with NatsPublisher(encrypted.url_of("app"), config=config) as publisher:
        await publisher.publish_all([event(str(n), data=b"x" * 9000) for n in range(200)])

        assert str(publisher).startswith("<NatsPublisher tls://127.0.0.1:")


async def test_relay_needs_nothing_but_a_url_for_tls_and_a_password(
    encrypted: Guarded, certificate: Path
) -> None:
    name, url = unique(), f"{encrypted.url_of('app')}?ca_file={certificate}&replicas=1"
    publisher = publisher_from(url, name)

    await publisher.open()
    await publisher.publish(event())
    await publisher.close()

    assert PASSWORD not in repr(publisher)


async def test_certificate_that_proves_nothing_is_refused(encrypted: Guarded) -> None:
    with pytest.raises(ConfigurationError, match="certificate is not trusted"):
        await NatsPublisher(encrypted.url_of("app")).open()


async def test_password_is_not_sent_where_tls_was_wanted_and_is_not_spoken(
    guarded: Guarded,
) -> None:
    url = guarded.url_of("app").replace("nats://", "tls://")

    with pytest.raises(ConfigurationError, match="secure connection not available"):
        await NatsPublisher(url).open()


@pytest.mark.parametrize(
    "url",
    [
        "http://u:canary@host",
        "nats://u:can/ary@host",
        "nats://u:can#ary@host",
        "nats://u:canary@host:port",
        "nats://u:canary@",
        "nats://u:ca,nary@host",
        "",
    ],
)
def test_bad_url_is_explained_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="bad NATS URL") as caught:
        NatsPublisher(url)

    assert "nary" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_all_mistakes_in_the_settings_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as settings:
        NatsConfig(
            publish_timeout=timedelta(0),
            replicas=0,
            max_message_size=0,
            sink="my sink",
            client_key=tmp_path,
            credentials=tmp_path,
            nkey_seed=tmp_path,
        )
    with pytest.raises(ConfigurationError) as names:
        NatsSource("nats://h", "a.b", group="\ud800", subjects=["e.>.f"], dead_letters="g h")
    with pytest.raises(ConfigurationError, match="TLS settings need tls://"):
        NatsPublisher("nats://h", config=NatsConfig(ca_file=tmp_path))

    named = ("publish_timeout", "replicas", "max_message_size", "sink", "client_key")
    for word in (*named, "excludes nkey_seed"):
        assert word in str(settings.value)
    for word in ("stream must", "group must", "subjects[0] must", "dead_letters must"):
        assert word in str(names.value)


async def test_hurt_server_is_named(services: Services) -> None:
    server: Server = services.another("nats")
    publisher = publisher_to(server.url, unique(), SHORT)
    await publisher.open()
    await asyncio.to_thread(server.kill)

    [outcome] = await outcomes_of(publisher, [event()])
    await publisher.close()

    assert isinstance(outcome, Unknown)
    assert f"NATS at {server.url}" in outcome.reason
    server.stop()

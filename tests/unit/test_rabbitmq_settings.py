"""RabbitMQ's URL, settings, topology and messages, as far as they need no broker."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from examples.messaging.topology import messaging_topology
from outrider import ConfigurationError, EventEnvelope, EventId, EventMetadata
from outrider.brokers.rabbitmq import (
    Binding,
    Exchange,
    Queue,
    RabbitMQConfig,
    RabbitMQPublisher,
    Topology,
)
from outrider.brokers.rabbitmq.amqp import Unsendable
from outrider.brokers.rabbitmq.config import parse_url
from outrider.brokers.rabbitmq.messages import MessageWriter
from outrider.brokers.rabbitmq.topology import declarations
from outrider.events.cloudevents import from_attributes
from outrider.ports import EventPublisher
from tests.support.brokers.amqp_peer import envelope
from tests.support.canary import CANARY


def test_url_is_read_with_its_defaults() -> None:
    plain = parse_url("amqp://broker")
    full = parse_url("amqps://a%40b:p%2Fw@[::1]:99/my%2Fhost?heartbeat=7")

    assert (plain.host, plain.port, plain.vhost, plain.tls) == ("broker", 5672, "/", False)
    assert (plain.user, plain.password, plain.heartbeat) == ("guest", "guest", None)
    assert (full.host, full.port, full.vhost, full.tls) == ("::1", 99, "my/host", True)
    assert (full.user, full.password, full.heartbeat) == ("a@b", "p/w", 7)
    assert parse_url("amqps://broker/").port == 5671


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://user:{CANARY}@host:port/",
        f"amqp://user:12/{CANARY}@host/vhost",
        f"amqp://user:12#{CANARY}@host/vhost",
        f"amqp://user:12?{CANARY}@host/vhost",
        f"amqp://user:{CANARY}@[::1/vhost",
        f"amqp://user:{CANARY}@one,two/vhost",
        f"http://user:{CANARY}@host/",
        f"amqp://host/?heartbeat={CANARY}",
        f"amqp://host/?password={CANARY}",
        f"amqp://host/{CANARY * 30}",
        f"user:{CANARY}@host",
    ],
)
def test_bad_url_is_explained_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="^bad RabbitMQ URL: ") as caught:
        RabbitMQPublisher(url)

    assert CANARY not in "".join(traceback.format_exception(caught.value)).replace(url, "")
    assert CANARY not in str(caught.value)


def test_publisher_prints_without_user_and_password() -> None:
    publisher = RabbitMQPublisher(f"amqp://admin:{CANARY}@host/shop")

    assert repr(publisher) == "<RabbitMQPublisher amqp://host:5672/shop exchange 'messaging'>"
    assert CANARY not in repr(parse_url(f"amqp://admin:{CANARY}@host/shop"))
    assert isinstance(publisher, EventPublisher)


def test_all_problems_of_a_config_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RabbitMQConfig(
            connect_timeout=timedelta(0),
            publish_timeout=timedelta(seconds=-1),
            heartbeat=timedelta(milliseconds=5),
            max_message_size=0,
            client_key=Path("key.pem"),
        )

    for name in ("connect_timeout", "publish_timeout", "heartbeat", "max_message_size", "client_k"):
        assert name in str(caught.value)


def test_tls_settings_that_cannot_work_are_refused_at_once(tmp_path: Path) -> None:
    config = RabbitMQConfig(ca_file=tmp_path / "missing.pem")

    with pytest.raises(ConfigurationError, match="need amqps://"):
        RabbitMQPublisher("amqp://host/", config=config)
    with pytest.raises(ConfigurationError, match="No such file"):
        RabbitMQPublisher("amqps://host/", config=config)


def test_messaging_topology_is_the_one_of_the_seed() -> None:
    topology = messaging_topology(audit=True)

    assert {e.name: (e.kind, e.durable) for e in topology.exchanges} == {
        "messaging": ("topic", True),
        "messaging.dlx": ("topic", True),
    }
    found = {q.name: (q.bindings[0].exchange, q.bindings[0].routing_key) for q in topology.queues}
    assert found == {
        "messaging.dlq": ("messaging.dlx", "#"),
        "group_message_processing": ("messaging", "group_message.*"),
        "scheduled_message_processing": ("messaging", "scheduled_message.*"),
        "messaging_audit": ("messaging", "#"),
    }
    dead = {q.name: q.dead_letter_exchange for q in topology.queues}
    assert dead.pop("messaging.dlq") is None
    assert set(dead.values()) == {"messaging.dlx"}
    assert len(messaging_topology().queues) == 3


def test_queue_becomes_rabbitmq_arguments() -> None:
    queue = Queue("q", kind="quorum", max_length=9, arguments={"x-message-ttl": 5})

    assert queue.all_arguments() == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2**31 - 1,
        "x-max-length": 9,
        "x-overflow": "reject-publish",
        "x-message-ttl": 5,
    }


def test_exchange_of_the_publisher_is_declared_if_the_topology_has_it_not() -> None:
    topology = Topology(queues=(Queue("q", (Binding("shop"),)),))

    added = declarations(topology.with_exchange("shop"))
    kept = Topology((Exchange("shop", "direct"),)).with_exchange("shop")

    assert [method.name for method in added] == ["Exchange.Declare", "Queue.Declare", "Queue.Bind"]
    assert [exchange.kind for exchange in kept.exchanges] == ["direct"]


@pytest.mark.parametrize("name", ["x" * 300, "späße"])
def test_name_that_amqp_cannot_express_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="topology"):
        RabbitMQPublisher("amqp://host/", exchange=name)


text = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=255)


@given(aggregate_id=text, user=st.text(max_size=99), data=st.binary(max_size=9_000))
def test_another_implementation_reads_what_was_marshalled_by_hand(
    aggregate_id: str, user: str, data: bytes
) -> None:
    sent = EventEnvelope(
        event_id=EventId.new(),
        event_type="order.placed",
        aggregate_type="order",
        aggregate_id=aggregate_id,
        occurred_at=datetime.now(UTC),
        data=data,
        metadata=EventMetadata(user_id=user, correlation_id="ü" * 300),
    )

    publish, content, found = parse(MessageWriter("shop", "tests").write(sent, 4096))

    assert (publish.exchange, publish.routing_key, publish.mandatory) == (
        "shop",
        "order.placed",
        True,
    )
    properties = content.properties
    assert properties.message_id == str(sent.event_id)
    assert (properties.message_type, properties.delivery_mode) == ("order.placed", 2)
    assert properties.content_type == "application/json"
    headers = properties.headers or {}
    attributes = {k.removeprefix("ce-"): str(v) for k, v in headers.items() if k.startswith("ce-")}
    assert "datacontenttype" not in attributes
    assert from_attributes(attributes, found).metadata == sent.metadata
    assert from_attributes(attributes, found).aggregate_id == aggregate_id
    assert headers["aggregate_id"] == aggregate_id
    assert headers["created_at"] == sent.occurred_at.isoformat()
    assert found == data


def parse(message: bytes) -> tuple[commands.Basic.Publish, header.ContentHeader, bytes]:
    frames = []
    while message:
        size, channel, found = frame.unmarshal(message)
        assert (channel, size <= 4096) == (1, True)
        frames.append(found)
        message = message[size:]
    publish, content, *parts = frames
    assert isinstance(publish, commands.Basic.Publish)
    assert isinstance(content, header.ContentHeader)
    values = [part.value or b"" for part in parts if isinstance(part, body.ContentBody)]
    assert content.body_size == sum(map(len, values))
    return publish, content, b"".join(values)


def test_event_that_fits_no_message_is_unsendable() -> None:
    writer = MessageWriter("shop", "tests")
    long_type, surrogate, many_headers = envelope(), envelope(), envelope()
    object.__setattr__(long_type, "event_type", "x" * 256)
    object.__setattr__(surrogate, "metadata", EventMetadata(user_id="\ud800"))
    object.__setattr__(many_headers, "metadata", EventMetadata(user_id="x" * 5000))

    for event in (long_type, surrogate, many_headers):
        with pytest.raises(Unsendable) as caught:
            writer.write(event, 4096)
        assert "xxx" not in str(caught.value)
    assert writer.write(many_headers, 131_072)


def test_event_from_before_1970_can_be_sent() -> None:
    event = envelope()
    object.__setattr__(event, "occurred_at", datetime(1901, 1, 1, tzinfo=UTC))

    _, content, _ = parse(MessageWriter("shop", "tests").write(event, 4096))

    assert (content.properties.headers or {})["ce-time"] == "1901-01-01T00:00:00+00:00"


def test_many_event_types_do_not_fill_the_memory() -> None:
    writer = MessageWriter("shop", "tests")

    for number in range(3000):
        writer.write(envelope(event_type=f"type.{number}"), 4096)

    assert len(writer._kinds) <= 1024

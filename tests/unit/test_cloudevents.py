"""What we write as CloudEvents, the official SDK must read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.bindings.http import HTTPMessage
from cloudevents.core.bindings.kafka import KafkaMessage
from cloudevents.core.formats.json import JSONFormat

from outrider import DecodeError, EventEnvelope, EventMetadata
from outrider.brokers.nats.messages import MessageWriter as NatsMessageWriter
from outrider.brokers.rabbitmq.messages import MessageWriter as RabbitMessageWriter
from outrider.events.cloudevents import (
    STRUCTURED_CONTENT_TYPE,
    from_attributes,
    from_structured,
    to_attributes,
    to_structured,
)
from outrider.testing.memory_broker import MemoryBroker

ENVELOPE = EventEnvelope(
    event_id=UUID(int=1),
    event_type="session.created",
    event_version=2,
    aggregate_type="session",
    aggregate_id="säule 7",
    occurred_at=datetime(2026, 2, 8, 12, 0, 0, 123456, tzinfo=UTC),
    payload={"title": "Käse", "n": 2**70},
    metadata=EventMetadata(
        correlation_id="req-1", causation_id="evt-0", user_id="u-1", traceparent="00-a-b-01"
    ),
)


def test_attributes_and_back_lose_nothing() -> None:
    attributes = to_attributes(ENVELOPE, "/shop")

    assert from_attributes(attributes, ENVELOPE.data) == ENVELOPE
    assert all(name.isalnum() and name.islower() and len(name) <= 20 for name in attributes)


def test_structured_form_and_back_loses_nothing() -> None:
    assert from_structured(to_structured(ENVELOPE, "/shop")) == ENVELOPE


def test_official_sdk_reads_the_structured_form() -> None:
    message = HTTPMessage(
        headers={"content-type": STRUCTURED_CONTENT_TYPE}, body=to_structured(ENVELOPE, "/shop")
    )

    event = http.from_structured_event(message)

    assert_same(event)


def test_official_sdk_reads_the_attributes_as_kafka_headers() -> None:
    attributes = to_attributes(ENVELOPE, "/shop")
    content_type = attributes.pop("datacontenttype")
    headers = {f"ce_{name}": value.encode() for name, value in attributes.items()}
    message = KafkaMessage(
        headers={**headers, "content-type": content_type.encode()}, key=None, value=ENVELOPE.data
    )

    event = kafka.from_binary(message, JSONFormat())

    assert_same(event)


def assert_same(event: object) -> None:
    get = event.get_attributes()  # type: ignore[attr-defined]
    assert get["id"] == str(ENVELOPE.event_id)
    assert get["source"] == "/shop"
    assert get["type"] == "session.created"
    assert get["subject"] == "säule 7"
    assert get["time"] == ENVELOPE.occurred_at
    assert get["aggregatetype"] == "session"
    assert get["eventversion"] == "2"
    assert get["correlationid"] == "req-1"
    assert get["userid"] == "u-1"
    assert event.get_data() == ENVELOPE.payload  # type: ignore[attr-defined]


@pytest.mark.parametrize("missing", ["specversion", "id", "type", "subject"])
def test_missing_attribute_is_named(missing: str) -> None:
    attributes = to_attributes(ENVELOPE, "/shop")
    del attributes[missing]

    with pytest.raises(DecodeError, match=missing):
        from_attributes(attributes, b"{}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eventversion": "two"}, "eventversion"),
        ({"id": ""}, "id: an event id must have 1 to 255 printable characters"),
        ({"time": "yesterday"}, r"RFC3339.* - at `\$.time`"),
        ({"specversion": "0.3"}, "specversion"),
    ],
)
def test_wrong_attribute_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        from_attributes({**to_attributes(ENVELOPE, "/shop"), **change}, b"{}")


def test_body_that_is_no_json_is_a_decode_error() -> None:
    broken = from_attributes(to_attributes(ENVELOPE, "/shop"), b"\xff\x00")

    with pytest.raises(DecodeError, match="session.created"):
        _ = broken.payload
    with pytest.raises(DecodeError, match="cloud event"):
        from_structured(json.dumps([1]))


@pytest.mark.parametrize(
    "bad", [{"subject": ""}, {"time": "2026-01-01T00:00:00"}, {"type": ""}, {"eventversion": "-1"}]
)
def test_attributes_that_make_no_valid_event_are_a_decode_error(bad: dict[str, str]) -> None:
    fine = {
        "specversion": "1.0",
        "id": "0195d0a2-0000-7000-8000-000000000001",
        "type": "order.placed",
        "time": "2026-01-01T00:00:00Z",
        "subject": "1",
        "aggregatetype": "order",
    }

    from_attributes(fine, b"{}")
    with pytest.raises(DecodeError):
        from_attributes({**fine, **bad}, b"{}")


def test_ids_of_other_producers_may_be_any_text_and_stay_apart() -> None:
    attributes = {**to_attributes(ENVELOPE, "/shop"), "id": "test-id-123"}

    first = from_attributes(attributes, b"{}")
    again = from_structured(json.dumps({**attributes, "data": {}}))
    other = from_attributes({**attributes, "source": "/stock"}, b"{}")

    assert str(first.event_id) == str(other.event_id) == "test-id-123"
    assert first.event_id == again.event_id != other.event_id
    assert to_attributes(first, "/shop")["id"] == "test-id-123"


async def test_foreign_ids_of_two_producers_stay_apart_wherever_they_are_published_again() -> None:
    attributes = {**to_attributes(ENVELOPE, "/a"), "id": "test-id-123"}
    received = [from_attributes({**attributes, "source": s}, b"{}") for s in ("/a", "/b")]
    ids = [each.event_id for each in received]
    broker = MemoryBroker()
    await broker.publisher().publish_all(received)
    rabbitmq = RabbitMessageWriter("events", "outrider")
    nats = NatsMessageWriter("events", "outrider", "sink")

    assert [to_attributes(each, "outrider")["source"] for each in received] == ["/a", "/b"]
    assert [EventEnvelope.from_json(each.to_json()).event_id for each in received] == ids
    assert [from_attributes(m.attributes, m.data).event_id for m in broker.messages] == ids
    for source, each in zip(("/a", "/b"), received, strict=True):
        assert source.encode() in rabbitmq.write(each, 4096)
    messages = [nats.write(each, "reply", 4096).split(b"\r\n") for each in received]
    assert [b"ce-source: /a" in messages[0], b"ce-source: /b" in messages[1]] == [True, True]
    message_ids = {line for m in messages for line in m if line.startswith(b"Nats-Msg-Id: ")}
    assert len(message_ids) == 2


FOREIGN = {"specversion": "1.0", "id": "1", "source": "/stock", "type": "t", "subject": "7"}


def test_event_of_another_producer_needs_neither_time_nor_aggregate_type() -> None:
    before = datetime.now(UTC)
    found = from_structured(json.dumps({**FOREIGN, "time": None, "eventversion": 3, "hot": True}))

    assert before <= found.occurred_at <= datetime.now(UTC)
    assert (found.aggregate_type, found.aggregate_id) == ("/stock", "7")
    assert found.event_version == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 7}, "cloud event: id: Expected `str | null`, got `int`"),
        ({"userid": {"canary": 1}}, "cloud event: userid: Expected .*, got `object`"),
        ({"canary two": [1]}, "cloud event: an attribute: Expected"),
        ({"eventversion": 1.5}, "cloud event: eventversion: Expected"),
        ({"eventversion": 0}, "eventversion"),
        ({"eventversion": 10**4000}, "eventversion"),
        ({"source": None}, "aggregate_type: expected 1 to 255"),
    ],
)
def test_attribute_of_the_wrong_json_type_is_named_without_its_value(
    change: dict[str, object], message: str
) -> None:
    text = json.dumps({**FOREIGN, **change})
    with pytest.raises(DecodeError, match=message.replace("|", r"\|")) as caught:
        from_structured(text)

    assert "canary" not in str(caught.value)

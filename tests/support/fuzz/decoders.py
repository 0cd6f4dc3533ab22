"""Everything that decodes foreign bytes: it must return an event or raise one clear error."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from nats.aio.msg import Msg

from outrider import EventEnvelope
from outrider.brokers.kafka.messages import to_delivery as kafka_delivery
from outrider.brokers.nats.messages import to_envelope as nats_envelope
from outrider.brokers.rabbitmq.amqp import Message, Wire
from outrider.brokers.rabbitmq.messages import to_delivery as rabbitmq_delivery
from outrider.brokers.redis.messages import to_delivery
from outrider.errors import DecodeError, InvalidEvent
from outrider.events.cloudevents import from_attributes, from_structured
from outrider.events.codec import deserialize_event
from outrider.ports import Delivery
from tests.support import shop

_LONGEST = 1_000
KNOWN = ["order.placed", "thing.happened", "account.opened"]
assert shop.OrderPlaced.event_type in KNOWN


def envelope_json(text: bytes | str) -> None:
    _event_or_refusal(EventEnvelope.from_json, text)


def cloud_event_json(text: bytes | str) -> None:
    _event_or_refusal(from_structured, text)


def attributes(found: Mapping[str, str], data: bytes) -> None:
    _event_or_refusal(from_attributes, found, data)


def stored_event(kind: str, text: bytes | str, version: int) -> None:
    try:
        deserialize_event(kind, text, version)
    except DecodeError as error:
        _is_short(str(error))


def rabbitmq_message(header: bytes, body: bytes) -> None:
    _is_delivery(rabbitmq_delivery(Message(1, False, b"", b"", header, body)))


def redis_entry(fields: Sequence[bytes]) -> None:
    _is_delivery(to_delivery(b"1-1", fields))


def kafka_record(headers: Sequence[tuple[str, bytes | None]], value: bytes | None) -> None:
    _is_delivery(kafka_delivery(cast("Any", SimpleNamespace(headers=headers, value=value))))


def nats_message(headers: Mapping[str, str] | None, data: bytes) -> None:
    _event_or_refusal(
        nats_envelope, Msg(cast("Any", None), headers=dict(headers or {})).headers, data
    )


class _Ears:
    """Whoever waits for deliveries and confirms."""

    def received(self, message: Message) -> None:
        _is_delivery(rabbitmq_delivery(message))

    def message_of(self, index: int) -> tuple[str, str]:
        return "1", "order.placed"

    def confirmed(self, index: int, refusal: str | None) -> None: ...
    def lost(self, error: Exception) -> None: ...


class _Transport(asyncio.Transport):
    def write(self, data: object) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


async def rabbitmq_wire(pieces: Sequence[bytes]) -> None:
    """Invalid bytes must close the connection with a reason, and raise nothing in the loop."""
    wire = Wire()
    wire.connection_made(_Transport())
    wire.receiver = cast("Any", _Ears())
    wire.publish(b"", cast("Any", _Ears()), range(3))
    for piece in pieces:
        wire.data_received(piece)
        assert len(wire._unread) <= wire.frame_max + 8 + len(piece)
    if wire.error is not None:
        assert str(wire.error)
    wire.abort(wire.error or cast("Any", OSError()))


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _event_or_refusal(decode: Any, *given: Any) -> None:
    try:
        event = decode(*given)
    except (DecodeError, InvalidEvent) as refusal:
        _is_short(str(refusal))
    else:
        assert isinstance(event, EventEnvelope)
        assert repr(event).isprintable()
        _come_back(event)


def _come_back(event: EventEnvelope) -> None:
    """Its payload is looked at by whoever handles it."""
    try:
        payload = event.payload
    except DecodeError as refusal:
        _is_short(str(refusal))
    else:
        assert EventEnvelope.from_json(event.to_json()).payload == payload


def _is_delivery(delivery: Delivery) -> None:
    assert (delivery.envelope is None) != (delivery.problem is None)
    if delivery.problem is not None:
        _is_short(delivery.problem)


def _is_short(reason: str) -> None:
    """It ends up in a log line and an error column."""
    assert 0 < len(reason) <= _LONGEST

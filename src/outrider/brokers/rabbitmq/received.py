"""From a message that a queue delivered to the event in it, whoever sent it."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pamqp import decode

from outrider.brokers.rabbitmq.amqp.properties import (
    CONTENT_TYPE,
    HEADERS,
    MESSAGE_ID,
    TIMESTAMP,
    read_properties,
    read_table,
    text_of,
)
from outrider.errors import DecodeError, InvalidEvent
from outrider.events.cloudevents import STRUCTURED_CONTENT_TYPE, from_attributes, from_structured
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.events.envelope import EventEnvelope

_TAG: Final = struct.Struct(">Q?")
_STRUCTURED: Final = STRUCTURED_CONTENT_TYPE.encode()
_PREFIX: Final = b"ce-"
_COUNT: Final = b"x-delivery-count"

# The headers of a hand-made outbox, and the attributes that they stand for.
_PLAIN: Final = {
    b"event_type": "type",
    b"aggregate_type": "aggregatetype",
    b"aggregate_id": "subject",
    b"created_at": "time",
}


class Message(NamedTuple):
    """As it came, except that its frames are put together."""

    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes

    def __repr__(self) -> str:
        return f"<message {self.tag}, {len(self.body)} bytes>"


def message_of(arguments: bytes, header: bytes, body: bytes) -> Message:
    at = 1 + arguments[0]
    tag, redelivered = _TAG.unpack_from(arguments, at)
    exchange = at + _TAG.size
    key = exchange + 1 + arguments[exchange]
    return Message(
        tag, redelivered, arguments[exchange + 1 : key], arguments[key + 1 :], header, body
    )


def delivery_of(message: Message) -> Delivery:
    deliveries = 1 + message.redelivered
    try:
        properties = read_properties(message.header)
        headers = read_table(properties.get(HEADERS, b""))
        if _COUNT in headers:
            deliveries = 1 + int(text_of(headers[_COUNT]) or 0)
        envelope = _envelope(properties, headers, message.body)
    except (DecodeError, InvalidEvent) as error:
        return Delivery(None, str(error), deliveries, message)
    except Exception as error:  # noqa: BLE001 - anybody may have sent anything
        problem = f"it cannot be read ({type(error).__name__})"
        return Delivery(None, problem, deliveries, message)
    return Delivery(envelope, None, deliveries, message)


def _envelope(
    properties: Mapping[int, bytes], headers: Mapping[bytes, bytes], body: bytes
) -> EventEnvelope:
    if properties.get(CONTENT_TYPE, b"")[1:].startswith(_STRUCTURED):
        return from_structured(body)
    attributes = {
        name[len(_PREFIX) :].decode(): said
        for name, value in headers.items()
        if name.startswith(_PREFIX) and (said := text_of(value)) is not None
    }
    return from_attributes(attributes or _plain_attributes(properties, headers), body)


def _plain_attributes(
    properties: Mapping[int, bytes], headers: Mapping[bytes, bytes]
) -> dict[str, str]:
    attributes = {
        attribute: said
        for name, attribute in _PLAIN.items()
        if name in headers and (said := text_of(headers[name])) is not None
    }
    if not attributes:
        raise DecodeError("neither ce- headers nor event_type, aggregate_type, aggregate_id")
    if TIMESTAMP in properties and "time" not in attributes:
        attributes["time"] = decode.timestamp(properties[TIMESTAMP])[1].isoformat()
    if "time" in attributes:
        attributes["time"] = _in_utc(attributes["time"])
    message_id = properties.get(MESSAGE_ID, b"\0")[1:].decode()
    return {"specversion": "1.0", "id": message_id, **attributes}


def _in_utc(moment: str) -> str:
    """Such an outbox often takes its times from a clock without a zone."""
    found = datetime.fromisoformat(moment)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()

"""Messages as the frames that publish them, marshalled by hand because it is the hot path."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from outrider.events.cloudevents import CONTENT_TYPE, extensions, to_attributes

if TYPE_CHECKING:
    from outrider.events.envelope import EventEnvelope

CHANNEL: Final = 1
FRAME_OVERHEAD: Final = 8

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_MANDATORY: Final = b"\x01"
_PERSISTENT: Final = b"\x02"
_MAX_SHORT: Final = 255
_MAX_KINDS: Final = 1024

_FRAME: Final = struct.Struct(">BHI")
_PUBLISH: Final = struct.Struct(">HHH")
_CONTENT: Final = struct.Struct(">HHQH")
_LENGTH: Final = struct.Struct(">I")
_TIMESTAMP: Final = struct.Struct(">Q")

# content_type, headers, delivery_mode, message_id, timestamp, type: sent in this order.
_PROPERTIES: Final = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6 | 1 << 5

# Attributes that all events of one type, version and aggregate type have in common.
_OF_THE_KIND: Final = frozenset({"specversion", "source", "type", "aggregatetype", "eventversion"})


class Unsendable(Exception):
    """This event does not fit into an AMQP message."""


class _Kind(NamedTuple):
    """What all events of one type, version and aggregate type have in common, marshalled once."""

    publish: bytes
    headers: bytes
    type: bytes


class MessageWriter:
    """Writes messages for one exchange."""

    def __init__(self, exchange: str, source: str) -> None:
        self._exchange = short(exchange, "exchange")
        self._source = source
        self._content_type = short(CONTENT_TYPE, "content type")
        self._kinds: dict[tuple[str, str, int], _Kind] = {}

    def write(self, envelope: EventEnvelope, frame_max: int) -> bytes:
        """The method, header and body frames; raises Unsendable if that is impossible."""
        key = (envelope.event_type, envelope.aggregate_type, envelope.event_version)
        try:
            kind = self._kinds.get(key) or self._learn(key, envelope)
            header = self._header(envelope, kind)
        except UnicodeEncodeError:
            raise Unsendable("a header is no valid Unicode text") from None
        return in_frames(kind.publish, header, envelope.data, frame_max)

    def _header(self, envelope: EventEnvelope, kind: _Kind) -> bytes:
        event_id = str(envelope.event_id).encode()
        subject, time = _long(envelope.aggregate_id), _long(envelope.occurred_at.isoformat())
        own = (_ID, _LENGTH.pack(len(event_id)), event_id, _SUBJECT, subject, _TIME, time)
        table = b"".join((kind.headers, *own, _AGGREGATE_ID, subject, _CREATED_AT, time))
        for name, value in extensions(envelope.metadata).items():
            table += _name("ce-" + name) + _long(value)
        # The property has no sign and whole seconds; `ce-time` is exact.
        seconds = max(0, int(envelope.occurred_at.timestamp()))
        return b"".join(
            (
                _CONTENT.pack(60, 0, len(envelope.data), _PROPERTIES),
                self._content_type,
                _LENGTH.pack(len(table)),
                table,
                _PERSISTENT,
                bytes((len(event_id),)) + event_id,
                _TIMESTAMP.pack(seconds),
                kind.type,
            )
        )

    def _learn(self, key: tuple[str, str, int], envelope: EventEnvelope) -> _Kind:
        event_type = short(envelope.event_type, "event type")
        attributes = to_attributes(envelope, self._source)
        headers = {"ce-" + name: attributes[name] for name in sorted(_OF_THE_KIND)}
        headers |= {"event_type": envelope.event_type, "aggregate_type": envelope.aggregate_type}
        kind = _Kind(
            publish=publish_frame(self._exchange, event_type),
            headers=b"".join(_name(name) + _long(value) for name, value in headers.items()),
            type=event_type,
        )
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[key] = kind
        return kind


def short(text: str, what: str) -> bytes:
    raw = text.encode()
    if len(raw) > _MAX_SHORT:
        raise Unsendable(f"its {what} needs {len(raw)} bytes, AMQP has {_MAX_SHORT}")
    return bytes((len(raw),)) + raw


def _long(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def _name(name: str) -> bytes:
    """Of a header, with the mark of a string value behind it."""
    return short(name, "header name") + b"S"


# What every event has of its own.
_ID, _SUBJECT, _TIME = _name("ce-id"), _name("ce-subject"), _name("ce-time")
_AGGREGATE_ID, _CREATED_AT = _name("aggregate_id"), _name("created_at")


def publish_frame(exchange: bytes, routing_key: bytes) -> bytes:
    """The method that comes before a message; both names are short strings already."""
    payload = _PUBLISH.pack(60, 40, 0) + exchange + routing_key + _MANDATORY
    return _FRAME.pack(_METHOD, CHANNEL, len(payload)) + payload + _END


def in_frames(publish: bytes, header: bytes, body: bytes, frame_max: int) -> bytes:
    if len(header) + FRAME_OVERHEAD > frame_max:
        raise Unsendable(f"its headers need {len(header)} bytes, a frame has {frame_max}")
    room = frame_max - FRAME_OVERHEAD
    parts = [publish, _FRAME.pack(_HEADER, CHANNEL, len(header)), header, _END]
    for at in range(0, len(body), room):
        piece = body[at : at + room]
        parts += (_FRAME.pack(_BODY, CHANNEL, len(piece)), piece, _END)
    return b"".join(parts)

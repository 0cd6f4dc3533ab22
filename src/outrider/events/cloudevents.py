"""Envelopes as CloudEvents 1.0: binary mode for brokers, structured JSON mode for streams."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from outrider.errors import DecodeError, InvalidEvent
from outrider.events.codec import UNREADABLE, check_type_name, decode_error
from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.events.ids import EventId, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE: Final = "application/json"
STRUCTURED_CONTENT_TYPE: Final = "application/cloudevents+json"
"""The media type of a CloudEvent in structured mode."""

# CloudEvents allows only lower-case letters and digits in extension names, at most 20.
_METADATA: Final = {
    "correlationid": "correlation_id",
    "causationid": "causation_id",
    "userid": "user_id",
    "traceid": "trace_id",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "replayid": "replay_id",
    "addedfields": "added_fields",
}

_NAME: Final = re.compile(r"[a-z0-9_]{1,20}")
_TEXT_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
_ExtensionValue = str | Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | bool | None


class _Attributes(msgspec.Struct):
    """The attributes that an envelope needs. On the wire, all of them are strings."""

    specversion: Literal["1.0"]
    id: str
    type: str
    subject: str
    source: str = ""
    time: datetime | None = None
    aggregatetype: str | None = None
    eventversion: Annotated[int, msgspec.Meta(ge=1)] = 1


def to_attributes(envelope: EventEnvelope, source: str) -> dict[str, str]:
    """All attributes as strings, for the headers of a message in binary mode."""
    return {
        "specversion": "1.0",
        "id": str(envelope.event_id),
        "source": source_of(envelope.event_id, source),
        "type": envelope.event_type,
        "subject": envelope.aggregate_id,
        "time": envelope.occurred_at.isoformat(),
        "datacontenttype": CONTENT_TYPE,
        "aggregatetype": envelope.aggregate_type,
        "eventversion": str(envelope.event_version),
        **extensions(envelope.metadata),
    }


def extensions(metadata: EventMetadata) -> dict[str, str]:
    """Metadata as extension attributes; fields that are None are left out."""
    if metadata is NO_METADATA:
        return {}
    values = ((extension, getattr(metadata, name)) for extension, name in _METADATA.items())
    return {extension: value for extension, value in values if value is not None}


def from_attributes(attributes: Mapping[str, str], data: bytes) -> EventEnvelope:
    """Rebuild the envelope from the attributes (without prefix) and the body of a message.

    Without `time` it is the time of receipt, without `aggregatetype` it is the source.
    """
    try:
        parsed = msgspec.convert(dict(attributes), _Attributes, strict=False)
    except UNREADABLE as error:
        raise decode_error("cloud event", error) from None
    metadata = {name: attributes[ext] for ext, name in _METADATA.items() if ext in attributes}
    try:
        return EventEnvelope(
            event_id=EventId.from_string(parsed.id, parsed.source),
            event_type=parsed.type,
            event_version=parsed.eventversion,
            aggregate_type=parsed.aggregatetype or parsed.source,
            aggregate_id=parsed.subject,
            occurred_at=parsed.time or datetime.now(UTC),
            data=data,
            metadata=EventMetadata(**metadata),
        )
    except InvalidEvent as error:
        raise DecodeError(f"cloud event: {_reason(error, parsed.type)}") from None
    except ValueError as error:
        raise DecodeError(f"cloud event: id: {error}") from None


def _reason(error: InvalidEvent, event_type: str) -> str:
    """The text of the error, unless it quotes an invalid type: that may be any value."""
    try:
        check_type_name(event_type)
    except InvalidEvent:
        return "type: use 1 to 255 letters, digits and _ . : / -"
    return str(error)


def to_structured(envelope: EventEnvelope, source: str) -> bytes:
    """One JSON object with attributes and data, for sinks that have no headers."""
    attributes = to_attributes(envelope, source)
    return msgspec.json.encode({**attributes, "data": msgspec.Raw(envelope.data)})


def from_structured(text: bytes | str) -> EventEnvelope:
    """Decode a CloudEvent in structured JSON mode; raises DecodeError if `text` is not one."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        data = bytes(fields.pop("data", b"{}"))
        attributes = {name: _as_text(name, raw) for name, raw in fields.items()}
    except UNREADABLE as error:
        raise decode_error("cloud event", error) from None
    present = {name: text for name, text in attributes.items() if text is not None}
    return from_attributes(present, data)


def _as_text(name: str, raw: msgspec.Raw) -> str | None:
    """Only extensions may be numbers or booleans; null stands for an absent attribute."""
    try:
        if name in _TEXT_ATTRIBUTES:
            return msgspec.json.decode(raw, type=str | None)
        value = msgspec.json.decode(raw, type=_ExtensionValue)
    except msgspec.ValidationError as error:
        shown = name if _NAME.fullmatch(name) else "an attribute"
        raise DecodeError(f"cloud event: {shown}: {error}") from None
    return str(value).lower() if isinstance(value, bool) else value and str(value)

"""The envelope: an event's payload with its ids, its aggregate and its metadata."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec

from outrider.errors import DecodeError, InvalidEvent
from outrider.events.codec import (
    EVENT_TYPES,
    UNREADABLE,
    check_type_name,
    decode_error,
    parse_payload,
)
from outrider.events.ids import EventId, source_of
from outrider.events.strict_json import Fault, JsonObject, check_time, encode_untyped

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

_MAX_KEY_CHARS: Final = 255
REPLACED_FIELDS: Final = "replaced_fields"
"""The field of a payload that keeps the values that envelope fields and context have replaced."""


class EventMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ids for tracing and for authorization. `repr` never shows the user's id."""

    correlation_id: str | None = None
    """Shared by all events that one request caused, directly or not."""
    causation_id: str | None = None
    """The id of the event that was being handled when this one was recorded."""
    user_id: str | None = None
    """The user who caused the event; for handlers that check permissions, never for logs."""
    trace_id: str | None = None
    """The id of the distributed trace, to search logs by."""
    traceparent: str | None = None
    """W3C trace context, as it was when the event was recorded."""
    tracestate: str | None = None
    """W3C vendor state that belongs to `traceparent`."""
    replay_id: str | None = None
    """The replay that published this copy; None for the first publication."""
    added_fields: str | None = None
    """Comma-separated names of the fields that the outbox added to the event's payload, or
    replaced in it; `replaced_fields` of the payload then has the event's own values."""

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [
            (name, "***" if name == "user_id" else value)
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        ]

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"EventMetadata({', '.join(fields)})"


NO_METADATA: Final = EventMetadata()


class _Wire(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON form of an envelope."""

    event_id: str
    event_source: str | msgspec.UnsetType = msgspec.UNSET
    event_type: str
    event_version: int = 1
    aggregate_type: str
    aggregate_id: str
    occurred_at: datetime
    payload: msgspec.Raw
    metadata: EventMetadata = NO_METADATA


_wire_decoder: Final = msgspec.json.Decoder(_Wire)


class EventEnvelope:
    """An event as it is stored and sent. The payload stays JSON until `payload` is read."""

    __slots__ = (
        "_payload",
        "aggregate_id",
        "aggregate_type",
        "data",
        "event_id",
        "event_type",
        "event_version",
        "metadata",
        "occurred_at",
    )

    event_id: UUID
    event_type: str
    event_version: int
    aggregate_type: str
    aggregate_id: str
    occurred_at: datetime
    data: bytes
    metadata: EventMetadata
    _payload: JsonObject | None

    def __init__(
        self,
        *,
        event_id: UUID,
        event_type: str,
        aggregate_type: str,
        aggregate_id: str,
        occurred_at: datetime,
        payload: Mapping[str, object] | None = None,
        data: bytes | None = None,
        metadata: EventMetadata = NO_METADATA,
        event_version: int = 1,
    ) -> None:
        check_type_name(event_type)
        check_key(event_type, "aggregate_type", aggregate_type)
        check_key(event_type, "aggregate_id", aggregate_id)
        _check_occurred_at(event_type, occurred_at)
        if not isinstance(event_id, UUID):
            raise InvalidEvent(
                f"{event_type}: event_id: expected UUID, got {type(event_id).__name__}"
            )
        put = object.__setattr__
        put(self, "event_id", event_id)
        put(self, "event_type", event_type)
        put(self, "event_version", event_version)
        put(self, "aggregate_type", aggregate_type)
        put(self, "aggregate_id", aggregate_id)
        put(self, "occurred_at", occurred_at)
        put(self, "data", encode_untyped(dict(payload or {}), event_type) if data is None else data)
        put(self, "metadata", metadata)
        put(self, "_payload", None)

    @classmethod
    def stored(
        cls,
        event_id: UUID,
        event_type: str,
        event_version: int,
        aggregate_type: str,
        aggregate_id: str,
        occurred_at: datetime,
        data: bytes,
        metadata: EventMetadata,
    ) -> EventEnvelope:
        """Make an envelope without checks, from a row that was checked when it was written.

        A relay makes thousands of envelopes each second.
        """
        envelope, put = object.__new__(cls), object.__setattr__
        put(envelope, "event_id", event_id)
        put(envelope, "event_type", event_type)
        put(envelope, "event_version", event_version)
        put(envelope, "aggregate_type", aggregate_type)
        put(envelope, "aggregate_id", aggregate_id)
        put(envelope, "occurred_at", occurred_at)
        put(envelope, "data", data)
        put(envelope, "metadata", metadata)
        put(envelope, "_payload", None)
        return envelope

    @property
    def payload(self) -> JsonObject:
        if self._payload is None:
            object.__setattr__(self, "_payload", parse_payload(self.data, self.event_type))
        return self._payload or {}

    def payload_as(self, kind: type[T]) -> T:
        """Decode the payload as an event class (old versions are upcast) or as any msgspec type."""
        if event_type := getattr(kind, "event_type", None):
            if event_type != self.event_type:
                raise DecodeError(f"{self.event_type}: is not a {event_type}")
            event: T = self.to_event()
            return event
        try:
            return msgspec.json.decode(self.data, type=kind)
        except UNREADABLE as error:
            raise decode_error(f"{self.event_type} as {kind.__name__}", error) from None

    def to_event(self) -> Any:
        """Decode the typed event; its class must have been imported."""
        return EVENT_TYPES.decode(self.event_type, self._own_data(), self.event_version)

    def _own_data(self) -> bytes:
        """The payload of a typed event: without the fields that the outbox added, and with the id
        and the time, which the payload of an ad-hoc event lacks."""
        added = self.metadata.added_fields
        try:
            fields = msgspec.json.decode(self.data, type=dict[str, msgspec.Raw])
            if added is None and "event_id" in fields and "occurred_at" in fields:
                return self.data
            taken = {name: fields.pop(name, None) for name in (added or "").split(",")}
            replaced = taken.get(REPLACED_FIELDS) or b"{}"
            own = msgspec.json.decode(replaced, type=dict[str, msgspec.Raw])
        except UNREADABLE as error:
            raise decode_error(f"{self.event_type} version {self.event_version}", error) from None
        identity = {"event_id": self.event_id, "occurred_at": self.occurred_at}
        return msgspec.json.encode({**identity, **fields, **own})

    def with_correlation_id(self, correlation_id: str) -> EventEnvelope:
        return self._with(correlation_id=correlation_id)

    def with_causation_id(self, causation_id: str | UUID) -> EventEnvelope:
        return self._with(causation_id=str(causation_id))

    def with_user_id(self, user_id: str) -> EventEnvelope:
        return self._with(user_id=user_id)

    def with_trace_id(self, trace_id: str) -> EventEnvelope:
        return self._with(trace_id=trace_id)

    def with_metadata(self, metadata: EventMetadata, data: bytes | None = None) -> EventEnvelope:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "_payload"}
        changes = {"metadata": metadata} if data is None else {"metadata": metadata, "data": data}
        return EventEnvelope(**{**fields, **changes})

    def _with(self, **changes: str) -> EventEnvelope:
        return self.with_metadata(msgspec.structs.replace(self.metadata, **changes))

    def to_json(self) -> bytes:
        return msgspec.json.encode(
            _Wire(
                event_id=str(self.event_id),
                event_source=source_of(self.event_id, "") or msgspec.UNSET,
                event_type=self.event_type,
                event_version=self.event_version,
                aggregate_type=self.aggregate_type,
                aggregate_id=self.aggregate_id,
                occurred_at=self.occurred_at,
                payload=msgspec.Raw(self.data),
                metadata=self.metadata,
            )
        )

    @classmethod
    def from_json(cls, text: bytes | str) -> EventEnvelope:
        try:
            wire = _wire_decoder.decode(text)
        except UNREADABLE as error:
            raise decode_error("event envelope", error) from None
        fields = {name: getattr(wire, name) for name in wire.__struct_fields__}
        try:
            source = fields.pop("event_source") or ""
            fields["event_id"] = EventId.from_string(wire.event_id, source)
        except ValueError as error:
            raise DecodeError(f"event envelope: event_id: {error}") from None
        data = bytes(fields.pop("payload"))
        return cls(**fields, data=data)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event envelope never changes; cannot set {name}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EventEnvelope):
            return NotImplemented
        if self.data != other.data and self.payload != other.payload:
            return False
        names = [name for name in self.__slots__ if name not in ("data", "_payload")]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash(self.event_id)

    def __repr__(self) -> str:
        return (
            f"<EventEnvelope {self.event_type} {self.event_id} of "
            f"{self.aggregate_type} {self.aggregate_id}, {len(self.data)} bytes>"
        )


def check_key(event_type: str, name: str, value: object) -> None:
    """Keys become routing keys, headers and log fields, so they must be short and printable."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _MAX_KEY_CHARS
        or not value.isprintable()
    ):
        raise InvalidEvent(
            f"{event_type}: {name}: expected 1 to {_MAX_KEY_CHARS} printable characters"
        )


def _check_occurred_at(event_type: str, value: object) -> None:
    if not isinstance(value, datetime):
        raise InvalidEvent(
            f"{event_type}: occurred_at: expected datetime, got {type(value).__name__}"
        )
    try:
        check_time(value)
    except Fault as fault:
        raise fault.within("occurred_at").as_error(event_type) from None

"""Events as the text of server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from outrider.events.cloudevents import to_structured
from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata

if TYPE_CHECKING:
    from collections.abc import Collection

GAP: Final = "outrider.gap"
"""The type of the message that reports deleted events between the last one and the next one."""


class Frames:
    """Writes an event as a CloudEvent, with the metadata fields that clients may see."""

    def __init__(self, source: str, metadata: Collection[str]) -> None:
        self._source, self._metadata = source, metadata

    def of(self, delivery_number: int, envelope: EventEnvelope) -> bytes:
        public = EventEnvelope.stored(
            envelope.event_id,
            envelope.event_type,
            envelope.event_version,
            envelope.aggregate_type,
            envelope.aggregate_id,
            envelope.occurred_at,
            envelope.data,
            self._public(envelope.metadata),
        )
        return message(delivery_number, envelope.event_type, to_structured(public, self._source))

    def _public(self, metadata: EventMetadata) -> EventMetadata:
        if metadata is NO_METADATA:
            return metadata
        return EventMetadata(**{name: getattr(metadata, name) for name in self._metadata})


def message(number: int, event_type: str, data: bytes) -> bytes:
    """One message. Line breaks in the type or the data cannot inject another SSE field."""
    # Other programs may write rows with a type that is not printable; the data has it anyway.
    event_field = f"event: {event_type}\n" if event_type.isprintable() else ""
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines())
    return b"id: %d\n%b%b\n" % (number, event_field.encode(), lines)


def gap(requested: int, oldest: int, newest: int) -> bytes:
    """Tells the client that the stream goes on at `oldest`.

    The id is the number before it, so a client that resumes right after this message starts there.
    """
    facts = {"requested": requested, "oldest": oldest, "newest": newest}
    return message(oldest - 1, GAP, msgspec.json.encode(facts))


def opening(retry_ms: int, number: int) -> bytes:
    """The first message. Its id lets a client that is cut off before any event resume from here."""
    return b"retry: %d\nid: %d\n\n" % (retry_ms, number)


def keep_alive(number: int | None) -> bytes:
    """A comment. A number moves the client's position past events that were filtered out."""
    return b": keep-alive\n\n" if number is None else b": keep-alive\nid: %d\n\n" % number

"""Events in the text form of server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from outrider.events.cloudevents import to_structured
from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata

if TYPE_CHECKING:
    from collections.abc import Collection

GAP: Final = "outrider.gap"
"""The type of the message that says: between what you saw and what comes, events are missing."""


class Frames:
    """Writes an event as a CloudEvent, with as much of its metadata as clients may see."""

    def __init__(self, source: str, metadata: Collection[str]) -> None:
        self._source, self._metadata = source, metadata

    def of(self, delivery_number: int, envelope: EventEnvelope) -> bytes:
        shown = EventEnvelope.stored(
            envelope.event_id,
            envelope.event_type,
            envelope.event_version,
            envelope.aggregate_type,
            envelope.aggregate_id,
            envelope.occurred_at,
            envelope.data,
            self._shown(envelope.metadata),
        )
        return message(delivery_number, envelope.event_type, to_structured(shown, self._source))

    def _shown(self, metadata: EventMetadata) -> EventMetadata:
        if metadata is NO_METADATA:
            return metadata
        return EventMetadata(**{name: getattr(metadata, name) for name in self._metadata})


def message(number: int, event_type: str, data: bytes) -> bytes:
    """No line of it can be taken for another field, whatever the type or data contain."""
    # Others than this library write rows too; such a type is in the data all the same.
    named = f"event: {event_type}\n" if event_type.isprintable() else ""
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines())
    return b"id: %d\n%b%b\n" % (number, named.encode(), lines)


def gap(requested: int, oldest: int, newest: int) -> bytes:
    """The client goes on from `oldest`; its id leads there also if it resumes right after."""
    facts = {"requested": requested, "oldest": oldest, "newest": newest}
    return message(oldest - 1, GAP, msgspec.json.encode(facts))


def opening(retry_ms: int, number: int) -> bytes:
    """With a number, so that a client cut off before its first event misses none."""
    return b"retry: %d\nid: %d\n\n" % (retry_ms, number)


def keep_alive(number: int | None) -> bytes:
    """A comment; with a number it also moves the client past events that it did not want."""
    return b": keep-alive\n\n" if number is None else b": keep-alive\nid: %d\n\n" % number

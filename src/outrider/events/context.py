"""Who and what is behind the work at hand: ids that a request sets once for all its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import msgspec

from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

StartSpan = Callable[[str], Mapping[str, str]]
"""Given an event's type, the W3C headers of a span that stands for recording it."""

_start_span: StartSpan | None = None
_current: Final[ContextVar[EventMetadata]] = ContextVar("outrider_metadata", default=NO_METADATA)


def current_metadata() -> EventMetadata:
    """What an event recorded now will carry."""
    return _current.get()


def metadata_for(event_type: str) -> EventMetadata:
    """The same for one event, with a span of its own if events are traced."""
    metadata = _current.get()
    if _start_span is None:
        return metadata
    carrier = _start_span(event_type)
    if "traceparent" not in carrier:
        return metadata
    found = {name: carrier.get(name) for name in ("traceparent", "tracestate")}
    # The second part of it is the trace's id.
    found["trace_id"] = carrier["traceparent"].split("-")[1]
    return msgspec.structs.replace(metadata, **found)


def trace_events_with(start_span: StartSpan | None) -> None:
    """Ask this for the trace context of every event recorded from now on; None ends it."""
    global _start_span  # noqa: PLW0603 - tracing is a matter of the whole process
    _start_span = start_span


@contextmanager
def event_context(
    *,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    user_id: str | None = None,
    trace_id: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> Iterator[EventMetadata]:
    """Add ids to every event recorded inside; what is not given stays as it is outside."""
    given = {
        "correlation_id": correlation_id,
        "causation_id": causation_id,
        "user_id": user_id,
        "trace_id": trace_id,
        "traceparent": traceparent,
        "tracestate": tracestate,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    token = _current.set(msgspec.structs.replace(_current.get(), **changes))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


@contextmanager
def handling(envelope: EventEnvelope) -> Iterator[None]:
    """Make this event the cause of every event recorded inside."""
    cause = envelope.metadata
    metadata = msgspec.structs.replace(
        cause,
        causation_id=str(envelope.event_id),
        correlation_id=cause.correlation_id or str(envelope.event_id),
    )
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)

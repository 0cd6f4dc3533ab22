"""Context metadata: ids that a request sets once for all events it records."""

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
"""Starts the span of recording one event of the given type; returns its W3C trace headers."""

_start_span: StartSpan | None = None
_current: Final[ContextVar[EventMetadata]] = ContextVar("outrider_metadata", default=NO_METADATA)


def current_metadata() -> EventMetadata:
    """The metadata that an event recorded now would get."""
    return _current.get()


def metadata_for(event_type: str) -> EventMetadata:
    """The metadata of one event, with the trace context of its own span if tracing is on."""
    metadata = _current.get()
    if _start_span is None:
        return metadata
    carrier = _start_span(event_type)
    if "traceparent" not in carrier:
        return metadata
    trace = {name: carrier.get(name) for name in ("traceparent", "tracestate")}
    # The format of a traceparent is version-trace_id-parent_id-flags.
    trace["trace_id"] = carrier["traceparent"].split("-")[1]
    return msgspec.structs.replace(metadata, **trace)


def trace_events_with(start_span: StartSpan | None) -> None:
    """Start a span with this function for every event recorded from now on; None stops that."""
    global _start_span  # noqa: PLW0603 - tracing is set up once per process
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
    """Set ids for every event recorded inside the block. None keeps the value from outside."""
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
    """Set this event as the cause of every event recorded inside the block."""
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

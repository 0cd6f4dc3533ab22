"""Tracing: one trace from the request through outbox, relay and broker to the handler.

Spans have ids, types and numbers; never a payload, a user's id or the text of an error.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing.name}: pip install 'outrider[opentelemetry]'") from None

from outrider.events.context import current_metadata, trace_events_with
from outrider.lifecycle import close_publisher, open_publisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

    from outrider.events.envelope import EventEnvelope, EventMetadata
    from outrider.ports import EventHandler, EventPublisher

_SYSTEM: Final = "outrider"


def trace_recording(tracer: Tracer | None = None) -> None:
    """Start a span for every event recorded in this process, and store its context in the event."""
    used_tracer = tracer or _tracer()

    def create(event_type: str) -> dict[str, str]:
        attributes = {
            "messaging.system": _SYSTEM,
            "messaging.operation.type": "create",
            "messaging.operation.name": "create",
            "messaging.destination.name": event_type,
        }
        carrier: dict[str, str] = {}
        with used_tracer.start_as_current_span(
            f"create {event_type}",
            context=_parent(),
            kind=SpanKind.PRODUCER,
            attributes=attributes,
        ):
            propagate.inject(carrier)
        return carrier

    trace_events_with(create)


class TracedPublisher:
    """Wraps a publisher: each batch is one span, linked to the spans of its events."""

    def __init__(
        self, publisher: EventPublisher, sink: str = "default", tracer: Tracer | None = None
    ) -> None:
        self._publisher, self._sink, self._tracer = publisher, sink, tracer or _tracer()

    def __str__(self) -> str:
        return str(self._publisher)

    async def open(self) -> None:
        await open_publisher(self._publisher)

    async def close(self) -> None:
        await close_publisher(self._publisher)

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        attributes: dict[str, AttributeValue] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": self._sink,
            "messaging.batch.message_count": len(envelopes),
        }
        links = [Link(context) for e in envelopes if (context := _context_of(e)).is_valid]
        with (
            self._tracer.start_as_current_span(
                f"send {self._sink}",
                kind=SpanKind.CLIENT,
                attributes=attributes,
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _record_errors(span),
        ):
            await self._publisher.publish_all(envelopes)


class TracedHandler:
    """Wraps a handler: each call is a span in the trace in which the event was recorded."""

    def __init__(self, handler: EventHandler, tracer: Tracer | None = None) -> None:
        self.name = handler.name
        self._handler, self._tracer = handler, tracer or _tracer()

    @property
    def needs(self) -> Sequence[str]:
        needs: Sequence[str] = getattr(self._handler, "needs", ())
        return needs

    async def handle(self, envelope: EventEnvelope, /) -> None:
        attributes: dict[str, AttributeValue] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": envelope.event_type,
            "messaging.message.id": str(envelope.event_id),
            "messaging.message.body.size": len(envelope.data),
            "outrider.handler": self.name,
        }
        with (
            self._tracer.start_as_current_span(
                f"process {envelope.event_type}",
                context=propagate.extract(_carrier(envelope.metadata)),
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _record_errors(span),
        ):
            result = self._handler.handle(envelope)
            if result is not None:  # None is the result of a plain method
                await result


def traced(
    handlers: Iterable[tuple[str, EventHandler]], tracer: Tracer | None = None
) -> list[tuple[str, EventHandler]]:
    """Wrap all these handlers; pass the result to a consumer or an in-process publisher."""
    wrapped: dict[int, TracedHandler] = {}
    return [
        (pattern, wrapped.setdefault(id(handler), TracedHandler(handler, tracer)))
        for pattern, handler in handlers
    ]


def _tracer() -> Tracer:
    return trace.get_tracer("outrider")


def _parent() -> Context | None:
    """None if a span is open; otherwise the trace context of the current metadata."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    return propagate.extract(_carrier(current_metadata()))


def _carrier(metadata: EventMetadata) -> dict[str, str]:
    headers = {"traceparent": metadata.traceparent, "tracestate": metadata.tracestate}
    return {name: value for name, value in headers.items() if value}


def _context_of(envelope: EventEnvelope) -> trace.SpanContext:
    context = propagate.extract(_carrier(envelope.metadata))
    return trace.get_current_span(context).get_span_context()


@contextmanager
def _record_errors(span: Span) -> Iterator[None]:
    """Only the class of an error: its text may quote the payload."""
    try:
        yield
    except BaseException as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
        raise

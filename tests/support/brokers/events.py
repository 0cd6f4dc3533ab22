"""An event for tests of one broker."""

from __future__ import annotations

from datetime import UTC, datetime

from outrider import EventEnvelope, EventId


def event(
    aggregate: str = "a", event_type: str = "order.placed", data: bytes = b"{}"
) -> EventEnvelope:
    return EventEnvelope(
        event_id=EventId.new(),
        event_type=event_type,
        aggregate_type="order",
        aggregate_id=aggregate,
        occurred_at=datetime.now(UTC),
        data=data,
    )

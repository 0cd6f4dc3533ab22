"""Events for the suites, and functions that compare their order."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.events.ids import EventId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from outrider.ports import Delivery
    from outrider.testing.conformance.harness import StoredMessage

CANARY: Final = "canary-3f9c"
"""Put into payloads, user ids and garbage; no printed text may contain it."""

_URL_WITH_PASSWORD: Final = re.compile(r"://[^/\s]*:[^/\s]+@")
_ZONE: Final = timezone(timedelta(hours=5, minutes=30))
_AWKWARD: Final = 'Bestellung "ä/ß" 100% a=b,c;d {東京} 🚀'


def event(
    aggregate_id: str = "a",
    payload: Mapping[str, Any] | None = None,
    metadata: EventMetadata = NO_METADATA,
) -> EventEnvelope:
    """An envelope with a new id."""
    return EventEnvelope(
        event_id=EventId.new(),
        event_type="order.placed",
        event_version=2,
        aggregate_type="order",
        aggregate_id=aggregate_id,
        occurred_at=datetime.now(_ZONE),
        payload=payload or {},
        metadata=metadata,
    )


def events(count: int, *aggregate_ids: str) -> list[EventEnvelope]:
    """This number of events in total; the aggregates take turns."""
    ids = aggregate_ids or ("a",)
    return [event(ids[number % len(ids)], {"number": number}) for number in range(count)]


def awkward_events() -> list[EventEnvelope]:
    """Large, empty, and with characters that have a special meaning in some format."""
    metadata = EventMetadata(
        correlation_id=f"correlation {_AWKWARD}",
        causation_id=f"causation {_AWKWARD}",
        user_id=f"user {_AWKWARD}",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        tracestate="one=00f067aa0ba902b7,two=t61rcWkgMzE",
        added_fields="number,text",
    )
    return [
        event("large", {"text": "x" * 200 * 1024}),
        event("empty"),
        event(_AWKWARD, {_AWKWARD: _AWKWARD, "\n\r\t\\": [2**70, -1.5, None]}, metadata),
        event("ä" * 255),
    ]


def without_time_zone(valid: EventEnvelope) -> EventEnvelope:
    """An event that another program may send; our own classes refuse to make it."""
    fields = {name: getattr(valid, name) for name in valid.__slots__ if name != "_payload"}
    return EventEnvelope.stored(**{**fields, "occurred_at": valid.occurred_at.replace(tzinfo=None)})


def envelopes_of(deliveries: Iterable[Delivery]) -> list[EventEnvelope]:
    return [delivery.envelope for delivery in deliveries if delivery.envelope is not None]


def order_of(envelopes: Iterable[EventEnvelope]) -> dict[str, list[str]]:
    """The ids of each aggregate in order, without repetitions."""
    return _order((each.aggregate_id, str(each.event_id)) for each in envelopes)


def stored_order(messages: Iterable[StoredMessage]) -> dict[str, list[str]]:
    return _order((each.attributes["subject"], each.attributes["id"]) for each in messages)


def _order(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    order: dict[str, dict[str, None]] = defaultdict(dict)
    for aggregate_id, event_id in pairs:
        order[aggregate_id].setdefault(event_id)
    return {aggregate_id: list(ids) for aggregate_id, ids in order.items()}


def secrets_in(text: str, words: Iterable[str]) -> list[str]:
    """The secrets that a text contains, and passwords in URLs."""
    return [word for word in (CANARY, *words) if word in text] + _URL_WITH_PASSWORD.findall(text)

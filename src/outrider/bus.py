"""What this request raised: events are collected here until the outbox writes them."""

from __future__ import annotations

from outrider.events import Event


class RaisesEvents:
    """For aggregates that raise their events themselves; the session hook collects them."""

    def raise_event(self, event: Event) -> None:
        self.__dict__.setdefault("_raised_events", []).append(event)

    def collect_events(self) -> list[Event]:
        """What was raised since the last call, in order."""
        raised: list[Event] = self.__dict__.pop("_raised_events", [])
        return raised


class EventBus:
    """Collects events in memory; one per request, nothing is stored or sent."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        if not isinstance(event, Event):
            raise TypeError(f"expected a DomainEvent, got {type(event).__name__}")
        self._events.append(event)

    def collect(self) -> list[Event]:
        """All events in the order they were emitted; the bus is empty afterwards."""
        events, self._events = self._events, []
        return events

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def event_count(self) -> int:
        return len(self._events)

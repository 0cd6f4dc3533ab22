"""The event bus: collects the events of one request until the outbox records them."""

from __future__ import annotations

from outrider.events.event import Event


class EventBus:
    """Collects events in memory, one bus per request. It stores and sends nothing."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        if not isinstance(event, Event):
            raise TypeError(f"expected a DomainEvent, got {type(event).__name__}")
        self._events.append(event)

    def collect(self) -> list[Event]:
        """All events, in the order in which they were emitted. Empties the bus."""
        events, self._events = self._events, []
        return events

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def event_count(self) -> int:
        return len(self._events)

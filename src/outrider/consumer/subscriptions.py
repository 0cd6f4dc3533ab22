"""Subscriptions: which handlers are called for which event types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.events.patterns import check_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from outrider.ports import EventHandler

_MAX_CACHED_TYPES = 10_000


class Subscriptions:
    """Handlers by pattern, in the order of their registration."""

    def __init__(self, handlers: Iterable[tuple[str, EventHandler]] = ()) -> None:
        self._all: list[tuple[str, EventHandler]] = []
        self._cache: dict[str, tuple[EventHandler, ...]] = {}
        for pattern, handler in handlers:
            self.subscribe(pattern, handler)

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        self._all.append((check_pattern(event_type), handler))
        self._cache = {}

    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None:
        for event_type in event_types:
            self.subscribe(event_type, handler)

    def of(self, event_type: str) -> tuple[EventHandler, ...]:
        """Each handler once, also if several of its patterns match."""
        handlers = self._cache.get(event_type)
        if handlers is None:
            if len(self._cache) >= _MAX_CACHED_TYPES:
                self._cache = {}
            matching = (handler for pattern, handler in self._all if matches(pattern, event_type))
            handlers = self._cache[event_type] = tuple(dict.fromkeys(matching))
        return handlers

    def __iter__(self) -> Iterator[tuple[str, EventHandler]]:
        return iter(self._all)

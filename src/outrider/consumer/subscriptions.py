"""Subscriptions: which handlers are called for which event types."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, get_args

from outrider.consumer.handlers import HANDLERS, add_handler, refuse_generator
from outrider.errors import ConfigurationError
from outrider.events.patterns import check_pattern, matches
from outrider.ports import EventHandler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.consumer.handlers import Subscription

Unhandled = Literal["accept", "refuse"]
"""What is done with an event that no handler subscribed to."""
NO_HANDLER: Final = "no handler subscribed to its type"

_MAX_CACHED_TYPES: Final = 10_000
_DECORATE: Final = "put @handles(OrderPlaced) above it, with its event class"


class Subscriptions:
    """Handlers by pattern, in the order of their registration; by default those of `@handles`."""

    def __init__(self, handlers: Iterable[Subscription] | None = None) -> None:
        self._given: Iterable[Subscription] = HANDLERS if handlers is None else handlers
        self._all: list[Subscription] = []
        self._cache: dict[str, tuple[EventHandler, ...]] = {}
        self._read()

    def _read(self) -> None:
        for pattern, handler in check_pairs(self._given):
            self.subscribe(pattern, handler)

    def open(self) -> None:
        """Read the registry again, as modules may have been imported since. Refuse to be empty."""
        self._read()
        if not self._all:
            raise ConfigurationError(
                "no handler is registered, so no event would have an effect: import the modules "
                "with your @handles functions first, or pass handlers=…"
            )

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        check_handler(event_type, handler)
        add_handler(self._all, check_pattern(event_type), handler)
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

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._all)


def unhandled_problems(setting: str) -> list[str]:
    return [] if setting in get_args(Unhandled) else ['unhandled must be "accept" or "refuse"']


def check_pairs(handlers: Iterable[object]) -> Iterator[Subscription]:
    if isinstance(handlers, Mapping):
        raise ConfigurationError("handlers: give the pairs of the mapping, handlers=….items()")
    if not isinstance(handlers, Iterable):
        raise _no_pairs(handlers)
    for pair in handlers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _no_pairs(pair)
        yield pair[0], pair[1]


def _no_pairs(given: object) -> ConfigurationError:
    cure = f": {_DECORATE}, and leave handlers out" if callable(given) else ""
    return ConfigurationError(
        "handlers takes a Handlers registry, or pairs of event type and handler, "
        f"not {type(given).__name__}{cure}"
    )


def check_handler(event_type: object, handler: object) -> None:
    if inspect.isclass(handler):
        raise ConfigurationError(
            f"{event_type}: {handler.__name__} is a class: make an instance, or {_DECORATE}"
        )
    if not isinstance(handler, EventHandler):
        raise ConfigurationError(
            f"{event_type}: a {type(handler).__name__} is no handler: {_DECORATE}, or give an "
            "object with a name and an async method handle(envelope)"
        )
    refuse_generator(f"{type(handler).__name__}.handle", handler.handle)

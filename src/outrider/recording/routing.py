"""Routing: which sinks an event goes to, decided when the event is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from outrider.errors import ConfigurationError
from outrider.events.patterns import check_pattern, matches
from outrider.ports import DEFAULT_SINK

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_CACHED_TYPES: Final = 10_000


class Routes:
    """Rules that map patterns of event types to sinks.

    An event goes once to each sink of every rule that matches. A rule with no sinks means that
    matching events are not published.
    """

    def __init__(self, rules: Mapping[str, str | Sequence[str]] | None = None) -> None:
        given = {"*": DEFAULT_SINK} if rules is None else rules
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"routes map event types to sinks, got {type(given).__name__}: write "
                'routes={"order.*": "orders", "*": "default"}'
            )
        self._rules = {
            check_pattern(pattern): (sinks,) if isinstance(sinks, str) else tuple(sinks)
            for pattern, sinks in given.items()
        }
        for sink in self.sinks:
            if not 0 < len(sink) <= 63 or not sink.isprintable():
                raise ConfigurationError(f"{sink!r} is no name for a sink")
        self._cache: dict[str, tuple[str, ...]] = {}

    @property
    def sinks(self) -> list[str]:
        """All sinks that rules name; each needs a relay."""
        return list(dict.fromkeys(sink for sinks in self._rules.values() for sink in sinks))

    def of(self, event_type: str) -> tuple[str, ...]:
        """The sinks of this event type.

        Raises ConfigurationError if no rule matches: the event would be lost without notice.
        """
        sinks = self._cache.get(event_type)
        if sinks is None:
            if len(self._cache) >= _MAX_CACHED_TYPES:
                self._cache.clear()
            sinks = self._cache[event_type] = self._find(event_type)
        return sinks

    def _find(self, event_type: str) -> tuple[str, ...]:
        matching = [sinks for pattern, sinks in self._rules.items() if matches(pattern, event_type)]
        if not matching:
            raise ConfigurationError(f"{event_type}: no route leads anywhere; add a rule for it")
        return tuple(dict.fromkeys(sink for sinks in matching for sink in sinks))

"""Which sinks an event goes to, decided when it is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.errors import ConfigurationError
from outrider.events.patterns import check_pattern, matches
from outrider.ports import DEFAULT_SINK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_TYPES: Final = 10_000


class Routes:
    """Rules from patterns of event types to sinks; an event goes to the sinks of every rule that
    matches, to each once. A rule without sinks says that such events are not to be sent."""

    def __init__(self, rules: Mapping[str, str | Sequence[str]] | None = None) -> None:
        given = {"*": DEFAULT_SINK} if rules is None else rules
        self._rules = {
            check_pattern(pattern): (sinks,) if isinstance(sinks, str) else tuple(sinks)
            for pattern, sinks in given.items()
        }
        for sink in self.sinks:
            if not 0 < len(sink) <= 63 or not sink.isprintable():
                raise ConfigurationError(f"{sink!r} is no name for a sink")
        self._found: dict[str, tuple[str, ...]] = {}

    @property
    def sinks(self) -> list[str]:
        """All that rules name; each needs a relay."""
        return list(dict.fromkeys(sink for sinks in self._rules.values() for sink in sinks))

    def of(self, event_type: str) -> tuple[str, ...]:
        """Raises ConfigurationError if no rule speaks of this type: it would be lost quietly."""
        found = self._found.get(event_type)
        if found is None:
            if len(self._found) >= _MOST_TYPES:
                self._found.clear()
            found = self._found[event_type] = self._find(event_type)
        return found

    def _find(self, event_type: str) -> tuple[str, ...]:
        matching = [sinks for pattern, sinks in self._rules.items() if matches(pattern, event_type)]
        if not matching:
            raise ConfigurationError(f"{event_type}: no route leads anywhere; add a rule for it")
        return tuple(dict.fromkeys(sink for sinks in matching for sink in sinks))

"""Stream filters: which events a client gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.errors import ConfigurationError
from outrider.events.patterns import check_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Collection

    from outrider.events.envelope import EventEnvelope


@dataclass(frozen=True, kw_only=True)
class StreamFilter:
    """Accepts an event if it meets all conditions. None means no condition; empty accepts none."""

    types: Collection[str] | None = None
    """Event types, or patterns such as `order.*`."""
    aggregate_types: Collection[str] | None = None
    aggregate_ids: Collection[str] | None = None

    def __post_init__(self) -> None:
        for name in ("types", "aggregate_types", "aggregate_ids"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigurationError(f"StreamFilter: {name} must be several, not one text")
            if given is not None:
                object.__setattr__(self, name, frozenset(given))
        for pattern in self.types or ():
            check_pattern(pattern)

    def __call__(self, envelope: EventEnvelope, /) -> bool:
        return (
            (self.aggregate_ids is None or envelope.aggregate_id in self.aggregate_ids)
            and (self.aggregate_types is None or envelope.aggregate_type in self.aggregate_types)
            and (
                self.types is None
                or any(matches(pattern, envelope.event_type) for pattern in self.types)
            )
        )

"""Deferrals: how long an aggregate waits when the sink cannot take its event now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.observability.failure_reason import MAX_REASON_CHARS, one_line
from outrider.outcomes import RefusedEvent
from outrider.relay.backoff import OutageBackoff
from outrider.signals import PublishDeferred

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outrider.outcomes import ClaimedEvent
    from outrider.signals import OnSignal

_FIRST_S: Final = 1.0
_CAP_S: Final = 30.0
_MAX_AGGREGATES: Final = 10_000


class Deferrals:
    """The backoff of each aggregate that waits, until one of its events is accepted.

    It is kept in memory: after a restart, each backoff begins again at one second.
    """

    def __init__(self, sink: str, signal: OnSignal) -> None:
        self._sink, self._signal = sink, signal
        self._waiting: dict[int, tuple[OutageBackoff, str]] = {}

    def defer(self, events: Iterable[tuple[ClaimedEvent, str]]) -> list[RefusedEvent]:
        """The oldest event of each aggregate, with its backoff; the later ones wait behind it."""
        oldest: dict[int, tuple[ClaimedEvent, str]] = {}
        for event, reason in events:
            oldest.setdefault(event.aggregate_key, (event, one_line(reason)[:MAX_REASON_CHARS]))
        return [self._defer(event, reason) for event, reason in oldest.values()]

    def _defer(self, event: ClaimedEvent, reason: str) -> RefusedEvent:
        """Tells of each aggregate and reason once."""
        key = event.aggregate_key
        backoff, known_reason = self._waiting.pop(key, (OutageBackoff(_FIRST_S, _CAP_S), None))
        wait = backoff.next_delay()
        if len(self._waiting) >= _MAX_AGGREGATES:
            self._waiting.pop(next(iter(self._waiting)))  # the one that was deferred longest ago
        self._waiting[key] = (backoff, reason)
        if reason != known_reason:
            self._signal(
                PublishDeferred(
                    sink=self._sink,
                    event_id=event.envelope.event_id,
                    event_type=event.envelope.event_type,
                    correlation_id=event.envelope.metadata.correlation_id,
                    wait=wait,
                    reason=reason,
                )
            )
        return RefusedEvent(event, reason, wait, counted=False)

    @property
    def are_active(self) -> bool:
        """Whether any aggregate waits."""
        return bool(self._waiting)

    def accepted(self, events: Iterable[ClaimedEvent]) -> None:
        """Their aggregates wait no longer."""
        for event in events:
            self._waiting.pop(event.aggregate_key, None)

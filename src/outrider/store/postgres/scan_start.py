"""Low-water marks: the position in each lane from which a claim starts to scan the index.

Index entries of settled rows stay until vacuum removes them, which a forgotten transaction can
delay for hours. A claim therefore starts at the position that its lane had settled half a second
ago: most transactions with lower positions have committed by then. Every few seconds a claim scans
from the very beginning, for those that committed later. Starting above zero needs a second query,
for older events of the same aggregates; so claims start at zero as long as that is quick.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from outrider.outcomes import ClaimedEvent

_SHIFT_INTERVAL_S: Final = 0.5
_RESCAN_INTERVAL_S: Final = 2.0
_MAX_RESCAN_INTERVAL_S: Final = 10.0
_MAX_AGGREGATES: Final = 100_000
_QUICK_S: Final = 0.002
_QUICK_PER_ROW_S: Final = 0.00001


class ScanStart:
    """The start of each lane that a relay holds; reset when the lane is taken over."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, quick: float = _QUICK_S
    ) -> None:
        self._clock, self._quick = clock, quick
        self._needed = True
        self._tokens: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._recent: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._next_shift = 0.0
        self._rescan_at: dict[int, float] = {}
        self._rescan_interval = _RESCAN_INTERVAL_S
        self._aggregates: dict[int, int] = {}

    def lease(self, tokens: Mapping[int, int]) -> None:
        """These lanes are held now; a new token means that the lane was another relay's."""
        for lane in self._tokens.keys() | tokens.keys():
            if self._tokens.get(lane) != tokens.get(lane):
                for known in (self._settled, self._recent, self._starts, self._rescan_at):
                    known.pop(lane, None)
        self._tokens = dict(tokens)

    def for_claim(self, lanes: Collection[int]) -> list[int]:
        """Where to start in each of these lanes."""
        now = self._clock()
        if now >= self._next_shift:
            self._starts, self._recent = self._recent, dict(self._settled)
            self._next_shift = now + _SHIFT_INTERVAL_S
        if not self._needed:
            return [0] * len(lanes)
        if any(now >= self._rescan_at.get(lane, 0.0) for lane in lanes):
            self._rescan_at |= dict.fromkeys(lanes, now + self._rescan_interval)
            return [0] * len(lanes)
        return [self._starts.get(lane, 0) for lane in lanes]

    def scanned(self, starts: Collection[int], rows: int, seconds: float) -> None:
        """Learn from a claim how long a scan from the very beginning takes."""
        if not any(starts):
            self._needed = seconds > self._quick + rows * _QUICK_PER_ROW_S
            # The more it costs, the less often it is done.
            interval = max(_RESCAN_INTERVAL_S, seconds * 20)
            self._rescan_interval = min(interval, _MAX_RESCAN_INTERVAL_S)

    def found(self, oldest: Mapping[int, int]) -> None:
        """These positions are pending. One below its lane's start was retried: start there."""
        for lane, position in oldest.items():
            for known in (self._settled, self._recent, self._starts):
                if position < known.get(lane, 0):
                    known[lane] = position

    def settled_before(self, aggregate_key: int, position: int) -> int:
        """The position up to which an aggregate is settled; nothing older of it can turn up.

        0 if this very position was settled before: somebody has retried it, and perhaps more.
        """
        known = self._aggregates.get(aggregate_key, 0)
        return known if known < position else 0

    def settled(self, claimed: Collection[ClaimedEvent], pending: Iterable[ClaimedEvent]) -> None:
        """`claimed` were settled; of these, `pending` are pending still, or may be again."""
        for lane, position in {event.lane: event.position for event in claimed}.items():
            self._settled[lane] = max(self._settled.get(lane, 0), position + 1)
        self._aggregates |= {event.aggregate_key: event.position for event in claimed}
        if len(self._aggregates) > _MAX_AGGREGATES:
            self._aggregates.clear()  # each is looked up from its beginning again
        for event in pending:
            self._aggregates.pop(event.aggregate_key, None)
            for known in (self._settled, self._recent, self._starts):
                known[event.lane] = min(known.get(event.lane, 0), event.position)

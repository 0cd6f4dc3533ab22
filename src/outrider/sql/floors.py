"""How far each lane is settled, so that a claim need not walk over what is done.

Entries of settled rows stay in an index until vacuum removes them, which a forgotten transaction
can delay for hours. A claim therefore starts where its lane was settled half a second ago (most
transactions that were numbered before have committed by then) and looks from the very beginning
every few seconds, for those that had not. A floor has its price, a second look for older events of
the same aggregates, so there is none as long as looking from the beginning is quick.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from outrider.ports import ClaimedEvent

_GRACE: Final = 0.5
_RESCAN: Final = 2.0
_RESCAN_SELDOM: Final = 10.0
_MOST_AGGREGATES: Final = 100_000
_QUICK: Final = 0.002  # seconds
_PER_ROW: Final = 0.00001


class Floors:
    """The floor of each lane that a relay holds; forgotten when the lane is taken anew."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, quick: float = _QUICK
    ) -> None:
        self._clock, self._quick = clock, quick
        self._needed = True
        self._tokens: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._recent: dict[int, int] = {}
        self._floors: dict[int, int] = {}
        self._next_shift = 0.0
        self._rescan_at: dict[int, float] = {}
        self._rescan = _RESCAN
        self._aggregates: dict[int, int] = {}

    def lease(self, tokens: Mapping[int, int]) -> None:
        for lane in self._tokens.keys() | tokens.keys():
            if self._tokens.get(lane) != tokens.get(lane):
                for known in (self._settled, self._recent, self._floors, self._rescan_at):
                    known.pop(lane, None)
        self._tokens = dict(tokens)

    def for_claim(self, lanes: Collection[int]) -> list[int]:
        now = self._clock()
        if now >= self._next_shift:
            self._floors, self._recent = self._recent, dict(self._settled)
            self._next_shift = now + _GRACE
        if not self._needed:
            return [0] * len(lanes)
        if any(now >= self._rescan_at.get(lane, 0.0) for lane in lanes):
            self._rescan_at |= dict.fromkeys(lanes, now + self._rescan)
            return [0] * len(lanes)
        return [self._floors.get(lane, 0) for lane in lanes]

    def looked(self, floors: Collection[int], rows: int, took: float) -> None:
        """A claim from these floors took so many seconds; was it one from the beginning?"""
        if not any(floors):
            self._needed = took > self._quick + rows * _PER_ROW
            # The more it costs, the more seldom it is done.
            self._rescan = min(max(_RESCAN, took * 20), _RESCAN_SELDOM)

    def found(self, oldest: Mapping[int, int]) -> None:
        """These are pending. One below its lane's floor was sent back: go on from there."""
        for lane, position in oldest.items():
            for known in (self._settled, self._recent, self._floors):
                if position < known.get(lane, 0):
                    known[lane] = position

    def settled_before(self, aggregate_key: int, position: int) -> int:
        """Up to where an aggregate is known to be settled; nothing older of it can turn up.

        Unless this very position was settled before: somebody has sent it back, and perhaps more.
        """
        known = self._aggregates.get(aggregate_key, 0)
        return known if known < position else 0

    def settled(self, claimed: Collection[ClaimedEvent], left: Iterable[ClaimedEvent]) -> None:
        """`claimed` have been dealt with; `left` are pending still, or may be again."""
        for lane, position in {event.lane: event.position for event in claimed}.items():
            self._settled[lane] = max(self._settled.get(lane, 0), position + 1)
        self._aggregates |= {event.aggregate_key: event.position for event in claimed}
        if len(self._aggregates) > _MOST_AGGREGATES:
            self._aggregates.clear()  # they are looked up from their beginning again
        for event in left:
            self._aggregates.pop(event.aggregate_key, None)
            for known in (self._settled, self._recent, self._floors):
                known[event.lane] = min(known.get(event.lane, 0), event.position)

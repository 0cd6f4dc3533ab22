"""The events of one publish call: which may be sent now, and what became of each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from outrider.outcomes import ACCEPTED, HELD_BACK, Outcome, Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.errors import OutriderError
    from outrider.events.envelope import EventEnvelope


class Batch:
    """Never has two events of one aggregate in flight: a stream may refuse one of them, and while
    it changes its leader may lose one, and store the next."""

    def __init__(self, envelopes: Sequence[EventEnvelope]) -> None:
        self.envelopes = envelopes
        self.ready: deque[int] = deque()
        """The events that may be sent now."""
        self.in_flight: dict[int, int] = {}
        """Those that were sent and not answered, with their sizes."""
        self.bytes_in_flight = 0
        self.changed = asyncio.Event()
        """Set with every answer."""
        self._outcomes: list[Outcome | None] = [None] * len(envelopes)
        self._followers: dict[int, int] = {}
        last: dict[tuple[str, str], int] = {}
        for index, envelope in enumerate(envelopes):
            aggregate = (envelope.aggregate_type, envelope.aggregate_id)
            if (before := last.get(aggregate)) is None:
                self.ready.append(index)
            else:
                self._followers[before] = index
            last[aggregate] = index

    @property
    def settled(self) -> bool:
        return not self.ready and not self.in_flight

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome or HELD_BACK for outcome in self._outcomes]

    def sent(self, index: int, size: int) -> None:
        self.in_flight[index] = size
        self.bytes_in_flight += size

    def answered(self, index: int, outcome: Outcome) -> None:
        """What follows in the same aggregate may go now, or else is held back."""
        self.bytes_in_flight -= self.in_flight.pop(index, 0)
        self._outcomes[index] = outcome
        if outcome is ACCEPTED and (follower := self._followers.get(index)) is not None:
            self.ready.append(follower)
        self.changed.set()

    def end(self, error: OutriderError) -> None:
        """Nobody can tell what became of all that was not answered."""
        for index in (*self.in_flight, *self.ready):
            self._outcomes[index] = Unknown(str(error), error)
        self.in_flight.clear()
        self.ready.clear()

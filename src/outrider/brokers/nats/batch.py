"""The events of one publish call: which may be sent now, and the outcome of each."""

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
    """Never has two events of one aggregate in flight: the stream may refuse the first and store
    the second, or lose the first in an election."""

    def __init__(self, envelopes: Sequence[EventEnvelope]) -> None:
        self.envelopes = envelopes
        self.ready: deque[int] = deque()
        """The events that may be sent now."""
        self.in_flight: dict[int, int] = {}
        """The events that were sent and not answered, with their sizes."""
        self.bytes_in_flight = 0
        self.changed = asyncio.Event()
        """Set with every answer."""
        self._outcomes: list[Outcome | None] = [None] * len(envelopes)
        self._followers: dict[int, int] = {}
        """The next event of the same aggregate."""
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
        """If it was accepted, the next event of its aggregate becomes ready; else that one is held
        back."""
        self.bytes_in_flight -= self.in_flight.pop(index, 0)
        self._outcomes[index] = outcome
        if outcome is ACCEPTED and (follower := self._followers.get(index)) is not None:
            self.ready.append(follower)
        self.changed.set()

    def fail(self, error: OutriderError) -> None:
        """The outcome of every event without an answer becomes Unknown."""
        for index in (*self.in_flight, *self.ready):
            self._outcomes[index] = Unknown(str(error), error)
        self.in_flight.clear()
        self.ready.clear()

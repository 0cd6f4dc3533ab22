"""The events of one publish call: which may be sent now, and the outcome of each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from outrider.brokers.rabbitmq.amqp import NACKED
from outrider.outcomes import ACCEPTED, HELD_BACK, Deferred, Outcome, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.brokers.rabbitmq.amqp import ConnectionLost
    from outrider.events.envelope import EventEnvelope

_CURE_OF_UNROUTABLE: Final = "bind a queue to it, or set mandatory=False to drop such events"


class Batch:
    """Has at most one event of an aggregate in flight, since confirms come in any order."""

    def __init__(self, envelopes: Sequence[EventEnvelope]) -> None:
        self.envelopes = envelopes
        self.changed = asyncio.Event()
        """Set when more may be sent, when all is settled and when the connection is lost."""
        self.lost_by: ConnectionLost | None = None
        self.has_unroutable = False
        """Whether the broker has returned an event that no queue takes."""
        self._outcomes: list[Outcome | None] = [None] * len(envelopes)
        self._unsettled = len(envelopes)
        self._in_flight: set[int] = set()
        self._ready: list[int] = []
        self._followers: dict[int, int] = {}
        last: dict[tuple[str, str], int] = {}
        for index, envelope in enumerate(envelopes):
            aggregate = (envelope.aggregate_type, envelope.aggregate_id)
            before = last.get(aggregate)
            if before is None:
                self._ready.append(index)
            else:
                self._followers[before] = index
            last[aggregate] = index

    @property
    def settled(self) -> bool:
        return self._unsettled == 0

    @property
    def in_flight(self) -> bool:
        return bool(self._in_flight)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome or HELD_BACK for outcome in self._outcomes]

    def take_ready(self) -> list[int]:
        """The events that may be sent now; the caller sends or refuses each of them."""
        taken, self._ready = self._ready, []
        return taken

    def sent(self, indexes: Sequence[int]) -> None:
        self._in_flight.update(indexes)

    def message_of(self, index: int, /) -> tuple[str, str]:
        envelope = self.envelopes[index]
        return str(envelope.event_id), envelope.event_type

    def confirmed(self, index: int, refusal: str | None, /) -> None:
        if index not in self._in_flight:
            return  # the call ended before its confirm came
        self._in_flight.remove(index)
        if refusal is not None:
            self._defer(index, refusal)
            return
        self._outcomes[index] = ACCEPTED
        self._unsettled -= 1
        follower = self._followers.get(index)
        if follower is not None:
            self._ready.append(follower)
        if follower is not None or not self._unsettled:
            self.changed.set()

    def refuse(self, index: int, reason: str) -> None:
        self._not_accepted(index, Refused(reason))

    def _defer(self, index: int, reason: str) -> None:
        if reason != NACKED:
            self.has_unroutable = True
            reason = f"{reason}: {_CURE_OF_UNROUTABLE}"
        self._not_accepted(index, Deferred(reason))

    def _not_accepted(self, index: int, outcome: Outcome) -> None:
        """Also holds back the later events of the same aggregate, which settles them too."""
        follower: int | None = index
        while follower is not None:
            self._outcomes[follower] = HELD_BACK
            self._unsettled -= 1
            follower = self._followers.get(follower)
        self._outcomes[index] = outcome
        if not self._unsettled:
            self.changed.set()

    def lost(self, error: ConnectionLost, /) -> None:
        self.lost_by = error
        self.changed.set()

    def end(self, unsent: Outcome, in_flight: Callable[[EventEnvelope], Outcome]) -> None:
        """Settle the events that have no outcome yet."""
        for index, outcome in enumerate(self._outcomes):
            if outcome is None:
                sent = index in self._in_flight
                self._outcomes[index] = in_flight(self.envelopes[index]) if sent else unsent
        self._in_flight.clear()
        self._unsettled = 0

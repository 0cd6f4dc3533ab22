"""Claimed events, and what became of them at the sink: accepted, refused, deferred or unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from outrider.errors import BrokerUnavailable, PublishFailed, PublishRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from outrider.events.envelope import EventEnvelope


class ClaimedEvent(msgspec.Struct, frozen=True, gc=False):
    """A pending row that a relay has claimed. A struct, since thousands are made each second."""

    position: int
    lane: int
    envelope: EventEnvelope
    created_at: datetime
    retry_count: int
    crash_count: int
    max_retries: int | None
    aggregate_key: int
    problem: str | None = None
    """Why the row cannot be published at all, if it is damaged."""


@dataclass(frozen=True)
class Accepted:
    """The sink has the event; only a positive acknowledgement says so."""


@dataclass(frozen=True)
class Refused:
    """The sink rejected this event; it costs an attempt."""

    reason: str
    error: Exception | None = None


@dataclass(frozen=True)
class Deferred:
    """The sink answered that it cannot take this event now: a queue is full, or is missing. The
    event's aggregate waits with a growing backoff, and no attempt is counted."""

    reason: str
    error: Exception | None = None


@dataclass(frozen=True)
class Unknown:
    """Nobody can tell: time-out, lost connection, or held back behind a refused event. It is
    published again, and no attempt is counted."""

    reason: str
    error: Exception | None = None


Outcome = Accepted | Refused | Deferred | Unknown
"""What became of one event at the sink."""
ACCEPTED: Final = Accepted()
"""The outcome of an event that the sink has stored."""
HELD_BACK: Final = Unknown("held back: an earlier event of its aggregate was not accepted")
"""The outcome of an event that was not sent, so that it does not overtake an earlier one."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """A refused or deferred event with its backoff; it has failed for good if `wait` is None."""

    event: ClaimedEvent
    reason: str
    wait: timedelta | None
    counted: bool = True
    """Whether it costs an attempt; a deferred event costs none."""


def raise_unless_accepted(outcomes: Sequence[Outcome]) -> None:
    """Raises PublishFailed with all outcomes, unless every event was accepted."""
    errors = [error for outcome in outcomes if (error := _error_of(outcome))]
    if errors:
        failed = PublishFailed(f"{len(errors)} of {len(outcomes)} events not accepted", errors)
        failed.outcomes = tuple(outcomes)
        raise failed


def _error_of(outcome: Outcome) -> Exception | None:
    match outcome:
        case Accepted():
            return None
        case Refused(reason, error):
            return error or PublishRefused(reason)
        case Deferred(reason, error) | Unknown(reason, error):
            return error or BrokerUnavailable(reason)

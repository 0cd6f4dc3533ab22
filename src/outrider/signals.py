"""What the library reports while it runs, as one typed stream to one callable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from outrider.outcomes import ClaimedEvent


@dataclass(frozen=True, kw_only=True)
class EventsRecorded:
    """A transaction with events was committed; how many there were of each type."""

    events: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class RelayStarted:
    """The relay is connected; `store` and `publisher` are descriptions without secrets."""

    relay: str
    sink: str
    store: str
    publisher: str


@dataclass(frozen=True, kw_only=True)
class RelayStopped:
    """The relay has ended; `pending` events wait for the next one, None if nobody could tell."""

    relay: str
    sink: str
    published: int
    pending: int | None


@dataclass(frozen=True, kw_only=True)
class LanesChanged:
    """The relay's share of the lanes is another one now."""

    relay: str
    sink: str
    lanes: int
    orphaned: int


@dataclass(frozen=True, kw_only=True)
class BatchClaimed:
    """A batch was read; `took` is how long the database needed."""

    sink: str
    events: int
    took: timedelta


@dataclass(frozen=True, kw_only=True)
class PublishRetried:
    """The sink refused an event; it is tried again after `wait`."""

    sink: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    attempt: int
    wait: timedelta
    reason: str


@dataclass(frozen=True, kw_only=True)
class EventFailed:
    """An event is out of attempts, or cannot be published at all; a person must look."""

    sink: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class BatchPublished:
    """The sink has accepted these events and their rows say so; `took` is the sink's part."""

    sink: str
    accepted: Sequence[ClaimedEvent]
    refused: int
    unknown: int
    took: timedelta


@dataclass(frozen=True, kw_only=True)
class SinkUnavailable:
    """The sink does not answer; the relay pauses, and nothing is counted against any event."""

    sink: str
    reason: str
    wait: timedelta


@dataclass(frozen=True, kw_only=True)
class SinkAvailable:
    """The sink answers again."""

    sink: str


@dataclass(frozen=True, kw_only=True)
class StoreUnavailable:
    """The database does not answer; the relay pauses."""

    sink: str
    reason: str
    wait: timedelta


@dataclass(frozen=True, kw_only=True)
class StoreAvailable:
    """The database answers again."""

    sink: str


@dataclass(frozen=True, kw_only=True)
class LeaseWasLost:
    """Another relay has taken over; what this one had in hand was not settled."""

    sink: str
    lanes: int
    events: int


@dataclass(frozen=True, kw_only=True)
class WokenUp:
    """The relay looks for work: `source` is notify or poll."""

    sink: str
    source: str


@dataclass(frozen=True, kw_only=True)
class EventsDeleted:
    """Old published events were deleted."""

    sink: str
    events: int


@dataclass(frozen=True, kw_only=True)
class ConsumerStarted:
    """The consumer receives; `source` is a description without secrets."""

    consumer: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ConsumerStopped:
    """The consumer has ended; what it had not acknowledged goes back to the broker."""

    consumer: str
    handled: int


@dataclass(frozen=True, kw_only=True)
class EventHandled:
    """A handler was called, or skipped because it had dealt with the event before."""

    handler: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    outcome: Literal["ok", "duplicate", "retry", "dead"]
    attempt: int
    took: timedelta
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class EventDeadLettered:
    """A message lies among the dead letters now; a person must look."""

    consumer: str
    event_id: UUID | None
    event_type: str | None
    correlation_id: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class SourceUnavailable:
    """The broker, or what handlers depend on, does not answer; the consumer pauses."""

    consumer: str
    reason: str
    wait: timedelta


@dataclass(frozen=True, kw_only=True)
class SourceAvailable:
    """It answers again."""

    consumer: str


Signal = (
    EventsRecorded
    | RelayStarted
    | RelayStopped
    | LanesChanged
    | BatchClaimed
    | PublishRetried
    | EventFailed
    | BatchPublished
    | SinkUnavailable
    | SinkAvailable
    | StoreUnavailable
    | StoreAvailable
    | LeaseWasLost
    | WokenUp
    | EventsDeleted
    | ConsumerStarted
    | ConsumerStopped
    | EventHandled
    | EventDeadLettered
    | SourceUnavailable
    | SourceAvailable
)
OnSignal = Callable[[Signal], None]

"""Signals: what the library reports while it runs, as typed objects to one callable."""

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
    """A transaction with events was committed; `events` counts them by event type."""

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
    """The relay has stopped; `pending` events are left, None if they could not be counted."""

    relay: str
    sink: str
    published: int
    pending: int | None


@dataclass(frozen=True, kw_only=True)
class LanesChanged:
    """The relay leases another number of lanes now; `orphaned` came from a relay that died."""

    relay: str
    sink: str
    lanes: int
    orphaned: int


@dataclass(frozen=True, kw_only=True)
class BatchClaimed:
    """A batch was claimed; `took` is the time of the query."""

    sink: str
    events: int
    took: timedelta


@dataclass(frozen=True, kw_only=True)
class PublishRetried:
    """The sink refused an event; the relay retries after `wait`."""

    sink: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    attempt: int
    wait: timedelta
    reason: str


@dataclass(frozen=True, kw_only=True)
class PublishDeferred:
    """The sink cannot take an event now; its aggregate waits, and no attempt is counted.

    Told once for each aggregate and reason, until an event of the aggregate is accepted.
    """

    sink: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    wait: timedelta
    reason: str


@dataclass(frozen=True, kw_only=True)
class EventFailed:
    """An event has no attempts left, or can never be published; a person must decide."""

    sink: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class BatchPublished:
    """The sink accepted these events, and their rows are settled; `took` is the time to publish."""

    sink: str
    accepted: Sequence[ClaimedEvent]
    refused: int
    deferred: int
    unknown: int
    took: timedelta


@dataclass(frozen=True, kw_only=True)
class SinkUnavailable:
    """The sink does not answer; the relay backs off, and counts no attempt for any event."""

    sink: str
    reason: str
    wait: timedelta


@dataclass(frozen=True, kw_only=True)
class SinkAvailable:
    """The sink answers again."""

    sink: str


@dataclass(frozen=True, kw_only=True)
class StoreUnavailable:
    """The database does not answer; the relay backs off."""

    sink: str
    reason: str
    wait: timedelta


@dataclass(frozen=True, kw_only=True)
class StoreAvailable:
    """The database answers again."""

    sink: str


@dataclass(frozen=True, kw_only=True)
class LeaseWasLost:
    """Another relay has taken over; this relay could not settle its claimed events."""

    sink: str
    lanes: int
    events: int


@dataclass(frozen=True, kw_only=True)
class WokenUp:
    """The relay claims again; `source` says why: notify or poll."""

    sink: str
    source: str


@dataclass(frozen=True, kw_only=True)
class EventsDeleted:
    """Old published events were deleted."""

    sink: str
    events: int


@dataclass(frozen=True, kw_only=True)
class ConsumerStarted:
    """The consumer is connected; `source` is a description without secrets."""

    consumer: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ConsumerStopped:
    """The consumer has stopped; the broker delivers unacknowledged messages again."""

    consumer: str
    handled: int


@dataclass(frozen=True, kw_only=True)
class EventHandled:
    """A handler was called, or skipped because it had processed the event before."""

    handler: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    outcome: Literal["ok", "duplicate", "wait", "retry", "dead"]
    """`wait` is told once: inbox, database or broker are unavailable, and no attempt is counted."""
    attempt: int
    took: timedelta
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class EventUnhandled:
    """The first event of a type that no handler subscribed to; it was accepted without effect."""

    event_id: UUID
    event_type: str
    correlation_id: str | None


@dataclass(frozen=True, kw_only=True)
class EventSuspected:
    """Processes died while they handled this message; it is handled alone now."""

    consumer: str
    event_id: UUID
    event_type: str
    correlation_id: str | None
    crashes: int


@dataclass(frozen=True, kw_only=True)
class EventDeadLettered:
    """A message was moved to the dead letters; a person must decide what to do with it."""

    consumer: str
    event_id: UUID | None
    event_type: str | None
    correlation_id: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class SourceUnavailable:
    """The broker does not answer; the consumer backs off."""

    consumer: str
    reason: str
    wait: timedelta


@dataclass(frozen=True, kw_only=True)
class SourceAvailable:
    """The broker answers again."""

    consumer: str


@dataclass(frozen=True, kw_only=True)
class MessagesLost:
    """The broker deleted messages before they were handled; `count` is None if it cannot tell.

    `first` and `last` are positions as the broker writes them; `reason` says how to prevent it.
    """

    consumer: str
    source: str
    first: str
    last: str
    count: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class EventLoopBlocked:
    """Nothing else could run meanwhile, not even the renewal of the lease; or the process was
    paused."""

    relay: str
    sink: str
    blocked: timedelta


@dataclass(frozen=True, kw_only=True)
class ServiceFailed:
    """A relay, consumer or stream has ended although nobody stopped it; only a restart helps."""

    service: str
    reason: str


Signal = (
    EventsRecorded
    | RelayStarted
    | RelayStopped
    | LanesChanged
    | BatchClaimed
    | PublishRetried
    | PublishDeferred
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
    | EventUnhandled
    | EventSuspected
    | EventDeadLettered
    | SourceUnavailable
    | SourceAvailable
    | MessagesLost
    | EventLoopBlocked
    | ServiceFailed
)
"""Everything that relays and consumers report."""

OnSignal = Callable[[Signal], None]
"""Gets every signal; it must return quickly."""

"""Summaries that the inspector returns: sinks, relays, lanes, events and failures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID


@dataclass(frozen=True, kw_only=True)
class SinkSummary:
    """The backlog and the throughput of one sink."""

    sink: str
    pending: int
    estimated: bool
    """Whether `pending` is an estimate, since there are too many events to count."""
    retrying: int
    parked: int = 0
    """Pending events that wait behind a failed event until a person retries or discards that."""
    failed: int
    at_least: bool = False
    """Whether the last three are lower bounds, since counting stopped at a limit."""
    oldest: timedelta | None
    """The age of the oldest pending event that is not parked."""
    rate: float
    """Events per second that the sink accepted lately."""
    last_delivery_number: int
    """The delivery number of the newest accepted event."""

    @property
    def time_to_empty(self) -> timedelta | None:
        """The time to publish the backlog at the present rate; None if it would never end."""
        ends = self.rate and not self.parked
        return timedelta(seconds=self.pending / self.rate) if ends else None


@dataclass(frozen=True, kw_only=True)
class RelaySummary:
    """One relay that has signed on."""

    name: str
    sink: str
    lanes: int
    started_at: datetime
    expires_at: datetime
    alive: bool


@dataclass(frozen=True, kw_only=True)
class LaneSummary:
    """One lane of a sink and its lease."""

    sink: str
    lane: int
    relay: str | None
    """The name of its owner; None if no relay leases it."""


@dataclass(frozen=True, kw_only=True)
class EventSummary:
    """One event at one sink, without its payload."""

    position: int
    event_id: UUID
    sink: str
    event_type: str
    event_version: int
    aggregate_type: str
    aggregate_id: str
    status: str
    retry_count: int
    crash_count: int
    occurred_at: datetime
    created_at: datetime
    next_retry_at: datetime | None
    published_at: datetime | None
    delivery_number: int | None
    last_error: str | None
    correlation_id: str | None
    causation_id: str | None


@dataclass(frozen=True, kw_only=True)
class RefusedAttempt:
    """One attempt to publish an event that the sink refused."""

    sink: str
    attempt: int
    """Its number; a retry by a person counts from 1 again."""
    at: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class ParkedAggregate:
    """An aggregate that waits for a person: retry or discard its failed event."""

    failed: EventSummary
    events: int
    """How many pending events are parked behind it."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Events, newest first; pass `older` as `before` to get the next page, None at the end."""

    events: Sequence[EventSummary]
    older: int | None


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failed events with the same sink, type and error."""

    sink: str
    event_type: str
    error: str | None
    events: int
    first: datetime
    last: datetime

"""What is seen of the outbox: a sink at a glance, and the lines of the lists."""

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
    """One sink at a glance."""

    sink: str
    pending: int
    estimated: bool
    """Whether `pending` is a guess: there are many."""
    retrying: int
    failed: int
    at_least: bool = False
    """Whether more may be retrying or failed than were counted."""
    oldest: timedelta | None
    """How long the oldest pending event waits."""
    rate: float
    """Events a second that were delivered lately."""
    last_delivery_number: int
    """The delivery number of the newest event that was accepted."""

    @property
    def time_to_empty(self) -> timedelta | None:
        """None if nothing moves."""
        return timedelta(seconds=self.pending / self.rate) if self.rate else None


@dataclass(frozen=True, kw_only=True)
class RelaySummary:
    name: str
    sink: str
    lanes: int
    started_at: datetime
    expires_at: datetime
    alive: bool


@dataclass(frozen=True, kw_only=True)
class LaneSummary:
    sink: str
    lane: int
    relay: str | None
    """Who holds it; None if nobody does."""


@dataclass(frozen=True, kw_only=True)
class EventSummary:
    """One row without its payload."""

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
class Page:
    """Newest first; `older` is where the next page begins, None at the end."""

    events: Sequence[EventSummary]
    older: int | None


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    sink: str
    event_type: str
    error: str | None
    events: int
    first: datetime
    last: datetime

"""The batch that a relay publishes now, for publishers that must know more than the envelopes."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from outrider.observability.failure_reason import ErrorDetail
    from outrider.outcomes import ClaimedEvent


@dataclass(frozen=True)
class CurrentBatch:
    """Claimed events, and how much the relay wants to know of errors."""

    events: Sequence[ClaimedEvent] = ()
    error_detail: ErrorDetail = "place"

    @cached_property
    def attempts(self) -> dict[UUID, int]:
        """The number of the present attempt of each event, from 1."""
        return {event.envelope.event_id: event.retry_count + 1 for event in self.events}


_NO_BATCH: Final = CurrentBatch()
current_batch: Final = ContextVar("outrider_current_batch", default=_NO_BATCH)
"""Set by a relay for its own tasks; empty if somebody else calls the publisher."""

"""Claimed rows as events, and how many rows to claim of each lane."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outrider.events.codec import UNREADABLE
from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.lanes import LANES, LEAST_PER_LANE
from outrider.outcomes import ClaimedEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

# Columns of a claimed row.
POSITION: Final = 0
LANE: Final = 2
KEY: Final = 12

_MAX_FACTOR: Final = 64
_decode_metadata: Final = msgspec.json.Decoder(EventMetadata).decode


class LaneQuota:
    """How many rows one claim takes of each lane; adapts from claim to claim."""

    def __init__(self) -> None:
        self._factor = 1

    def per_lane(self, limit: int) -> int:
        """At most so many of one lane: few, unless a few lanes have all the work."""
        return min(limit, max(LEAST_PER_LANE, 2 * limit // LANES) * self._factor)

    def adapt(self, rows: Sequence[Any], limit: int) -> None:
        """Take more of each lane next time if a full lane kept the batch from being full."""
        if len(rows) < limit and rows:
            fullest = Counter(row[LANE] for row in rows).most_common(1)[0][1]
            full = fullest >= self.per_lane(limit)
            self._factor = min(_MAX_FACTOR, self._factor * 2) if full else 1


def event_of(row: Any) -> ClaimedEvent:
    problem = None
    try:
        metadata = NO_METADATA if row[14] == "{}" else _decode_metadata(row[14])
    except UNREADABLE:
        metadata, problem = NO_METADATA, "its metadata cannot be read"
    envelope = EventEnvelope.stored(
        row[1], row[3], row[4], row[5], row[6], row[7], row[13].encode(), metadata
    )
    retry_count, crash_count, max_retries = row[9:12]
    return ClaimedEvent(
        row[POSITION],
        row[LANE],
        envelope,
        row[8],
        retry_count,
        crash_count,
        max_retries,
        row[KEY],
        problem,
    )

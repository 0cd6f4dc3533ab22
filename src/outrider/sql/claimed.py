"""Rows as claimed events, and how many to ask for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outrider.codec import UNREADABLE
from outrider.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.ports import LEAST_PER_LANE, ClaimedEvent
from outrider.sql.rows import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where to find them in a row of the claim.
POSITION: Final = 0
LANE: Final = 2
KEY: Final = 12

_decode_metadata: Final = msgspec.json.Decoder(EventMetadata).decode


class Portions:
    """How many rows to ask for of one lane; remembered from claim to claim."""

    def __init__(self) -> None:
        self._generous = 1

    def per_lane(self, limit: int) -> int:
        """How many of one lane at most; few, unless few lanes have all the work."""
        return min(limit, max(LEAST_PER_LANE, 2 * limit // LANES) * self._generous)

    def learn(self, rows: Sequence[Any], limit: int) -> None:
        """If a few lanes have all the work, take more of each the next time."""
        if len(rows) < limit and rows:
            fullest = Counter(row[LANE] for row in rows).most_common(1)[0][1]
            self._generous = min(64, self._generous * 2) if fullest >= self.per_lane(limit) else 1


def event_of(row: Any) -> ClaimedEvent:
    problem = None
    try:
        metadata = NO_METADATA if row[14] == "{}" else _decode_metadata(row[14])
    except UNREADABLE:
        metadata, problem = NO_METADATA, "its metadata cannot be read"
    envelope = EventEnvelope.stored(
        row[1], row[3], row[4], row[5], row[6], row[7], row[13].encode(), metadata
    )
    retries, crashes, most = row[9:12]
    place = row[POSITION], row[LANE]
    return ClaimedEvent(*place, envelope, row[8], retries, crashes, most, row[KEY], problem)

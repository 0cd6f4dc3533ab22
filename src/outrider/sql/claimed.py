"""Rows as claimed events, and how many to ask for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outrider.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.ports import ClaimedEvent
from outrider.sql.rows import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.sql.floors import Floors

_decode_metadata: Final = msgspec.json.Decoder(EventMetadata).decode


class Claims:
    """What one store remembers from claim to claim."""

    def __init__(self, floors: Floors) -> None:
        self.floors = floors
        self._generous = 1

    def per_lane(self, limit: int) -> int:
        """How many of one lane at most; few, unless few lanes have all the work."""
        return min(limit, max(16, 2 * limit // LANES) * self._generous)

    def events(self, rows: Sequence[Any], limit: int) -> list[ClaimedEvent]:
        if len(rows) < limit and rows:
            fullest = Counter(row[2] for row in rows).most_common(1)[0][1]
            self._generous = min(64, self._generous * 2) if fullest >= self.per_lane(limit) else 1
        stopped: set[int] = set()
        events = []
        for row in rows:
            if row[15]:  # it waits for its retry, behind one that was committed late
                stopped.add(row[12])
            if row[12] not in stopped:
                events.append(_event(row))
        return events


def _event(row: Any) -> ClaimedEvent:
    metadata = row[14]
    envelope = EventEnvelope.stored(
        row[1],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[13].encode(),
        NO_METADATA if metadata == "{}" else _decode_metadata(metadata),
    )
    return ClaimedEvent(row[0], row[2], envelope, row[8], row[9], row[10], row[11])

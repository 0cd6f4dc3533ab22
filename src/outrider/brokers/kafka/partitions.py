"""A partition that is assigned to a source: its unacknowledged deliveries and its crash counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.brokers.kafka.messages import to_delivery
from outrider.brokers.kafka.positions import Position

if TYPE_CHECKING:
    from collections import Counter

    from aiokafka import ConsumerRecord  # type: ignore[import-untyped]

    from outrider.ports import Delivery


class Partition:
    """The deliveries that are not acknowledged, the oldest first.

    The records before `start.first_innocent` are suspects, and those with a crash. `own_crashes`
    are counts of this process, which come on top of those in `start`.
    """

    def __init__(self, start: Position, own_crashes: Counter[int]) -> None:
        self.committed: Position | None = None
        self._start = start
        self._crashes, self._own_crashes = dict(start.crashes), own_crashes
        self._unacknowledged: dict[int, Delivery] = {}
        self._end = start.offset

    @property
    def next_offset(self) -> int:
        """The low-water mark: where another source would continue."""
        return next(iter(self._unacknowledged), self._end)

    @property
    def position(self) -> Position:
        """What to commit while this source has the partition."""
        offsets = self._crashes.keys() | self._own_crashes.keys()
        crashes = {offset: self._count(offset) for offset in offsets}
        return self._position(crashes, self._start.owner, self._end)

    @property
    def released_position(self) -> Position:
        """What to commit when this source releases the partition: its process did not die."""
        return self._position(self._crashes)

    def deliver(self, record: ConsumerRecord) -> Delivery:
        delivery, offset = to_delivery(record), record.offset
        delivery.crash_count = self._crashes.get(offset, 0)
        delivery.suspect = offset < self._start.first_innocent or delivery.crash_count > 0
        self._unacknowledged[offset] = delivery
        self._end = offset + 1
        return delivery

    def skip_to(self, offset: int) -> None:
        """What was not received before this offset is lost."""
        self._end = offset

    def acknowledge(self, offset: int) -> None:
        for found in (self._unacknowledged, self._crashes, self._own_crashes):
            found.pop(offset, None)

    def lose_deliveries(self) -> None:
        for delivery in self._unacknowledged.values():
            delivery.lost = True

    def _count(self, offset: int) -> int:
        return self._crashes.get(offset, 0) + self._own_crashes[offset]

    def _position(self, crashes: dict[int, int], owner: str = "", end: int = 0) -> Position:
        offset, first_innocent = self.next_offset, self._start.first_innocent
        return Position(
            offset=offset,
            owner=owner,
            topic_id=self._start.topic_id,
            crashes={at: count for at, count in crashes.items() if count > 0},
            end=end if end > offset else 0,
            first_innocent=first_innocent if first_innocent > offset else 0,
        )

"""The window: the newest events in memory, shared by all clients of a process."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.stream.delivered import DeliveredEvent

_OVERHEAD_BYTES: Final = 512


class Item:
    """An event whose text is written once, when the first client wants it."""

    __slots__ = ("_frame", "_write", "delivery_number", "envelope")

    def __init__(self, event: DeliveredEvent, write: Callable[[int, EventEnvelope], bytes]) -> None:
        self.delivery_number, self.envelope = event.delivery_number, event.envelope
        self._write, self._frame = write, b""

    @property
    def frame(self) -> bytes:
        self._frame = self._frame or self._write(self.delivery_number, self.envelope)
        return self._frame

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory once its text is written."""
        return 2 * len(self.envelope.data) + _OVERHEAD_BYTES


class Window:
    """All events after number `start`, up to `newest`. Drops the oldest when it gets too large."""

    def __init__(self, newest: int, max_items: int, max_bytes: int) -> None:
        self.start = self.newest = newest
        self.changed = asyncio.Event()
        """Set at the next change, and then replaced by a new one."""
        self._max_items, self._max_bytes, self._bytes = max_items, max_bytes, 0
        self._items: list[Item] = []

    def add(self, items: Sequence[Item]) -> None:
        if not items:
            return
        self._items += items
        self.newest = items[-1].delivery_number
        self._bytes += sum(item.size for item in items)
        self._trim()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def after(self, delivery_number: int, limit: int) -> list[Item] | None:
        """The next items with a higher number; None if the window starts later than that."""
        if delivery_number < self.start:
            return None
        first = bisect_right(self._items, delivery_number, key=lambda item: item.delivery_number)
        return self._items[first : first + limit]

    def _trim(self) -> None:
        dropped = max(0, len(self._items) - self._max_items)
        self._bytes -= sum(item.size for item in self._items[:dropped])
        while self._bytes > self._max_bytes:
            self._bytes -= self._items[dropped].size
            dropped += 1
        if dropped:
            self.start = self._items[dropped - 1].delivery_number
            del self._items[:dropped]

"""The newest events in memory, once for all clients of a process."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.stream.delivered import DeliveredEvent

_OVERHEAD: Final = 512


class Item:
    """An event that is written as text when the first client wants it, and then no more."""

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
        """About what it takes once it is written."""
        return 2 * len(self.envelope.data) + _OVERHEAD


class Window:
    """Everything after `begins` and up to `newest`; the oldest go when it gets too large."""

    def __init__(self, newest: int, most: int, most_bytes: int) -> None:
        self.begins = self.newest = newest
        self.changed = asyncio.Event()
        """Set at the next change, and then replaced by another."""
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
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
        """The first of those with a higher number; None if it does not reach back that far."""
        if delivery_number < self.begins:
            return None
        start = bisect_right(self._items, delivery_number, key=lambda item: item.delivery_number)
        return self._items[start : start + limit]

    def _trim(self) -> None:
        gone = max(0, len(self._items) - self._most)
        self._bytes -= sum(item.size for item in self._items[:gone])
        while self._bytes > self._most_bytes:
            self._bytes -= self._items[gone].size
            gone += 1
        if gone:
            self.begins = self._items[gone - 1].delivery_number
            del self._items[:gone]

"""Backoff while a database or a broker is away: each wait is longer, up to a cap."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from heapq import heappop, heappush
from math import inf
from typing import Final

MAX_OUTAGE_DELAY: Final = timedelta(seconds=5)
_MAX_TIMES: Final = 10_000
_STOPPING_DELAY: Final = timedelta(milliseconds=50)


async def sleep_unless(stopping: asyncio.Event, wait: timedelta) -> None:
    """Sleep, but wake up at once when `stopping` is set.

    If it is set already, the sleep is short: a caller that repeats until it is cancelled would
    keep the event loop to itself without any.
    """
    if stopping.is_set():
        await asyncio.sleep(min(wait, _STOPPING_DELAY).total_seconds())
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(wait.total_seconds()):
            await stopping.wait()


class RetryTimes:
    """When events that wait are due again, on the event loop's clock; a poll finds the rest."""

    def __init__(self) -> None:
        self._times: list[float] = []

    @property
    def earliest(self) -> float:
        return self._times[0] if self._times else inf

    def add(self, time: float) -> None:
        if len(self._times) < _MAX_TIMES:
            heappush(self._times, time)

    def drop_until(self, now: float) -> None:
        while self.earliest <= now:
            heappop(self._times)


class OutageBackoff:
    """Exponential backoff with jitter, from a tenth of a second to five seconds."""

    def __init__(self, first: float = 0.1, cap: float = MAX_OUTAGE_DELAY.total_seconds()) -> None:
        self._first, self._cap = first, cap
        self._failures = 0

    @property
    def just_started(self) -> bool:
        """Whether the last call of `next_delay` was the first of this outage."""
        return self._failures == 1

    @property
    def active(self) -> bool:
        """Whether there is an outage now."""
        return self._failures > 0

    def next_delay(self) -> timedelta:
        """Count one more failure; returns how long to wait before the next attempt."""
        wait = min(self._cap, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return timedelta(seconds=wait * random.uniform(0.8, 1.0))  # noqa: S311

    def reset(self) -> bool:
        """The outage is over; returns whether there was one."""
        failures, self._failures = self._failures, 0
        return failures > 0

"""Waiting for something that is down: longer each time, up to a cap, and told once."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta


async def sleep_unless(stopping: asyncio.Event, wait: timedelta) -> None:
    """Sleep, but not into a shutdown."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait.total_seconds()):
            await stopping.wait()


class Pause:
    """Grows from a tenth of a second to five seconds, with some chance in it."""

    def __init__(self, first: float = 0.1, cap: float = 5.0) -> None:
        self._first, self._cap = first, cap
        self._failures = 0

    @property
    def began(self) -> bool:
        """Whether the last call of `longer` was the first of this outage."""
        return self._failures == 1

    @property
    def lasts(self) -> bool:
        """Whether there is an outage now."""
        return self._failures > 0

    def longer(self) -> timedelta:
        wait = min(self._cap, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return timedelta(seconds=wait * random.uniform(0.8, 1.0))  # noqa: S311

    def end(self) -> bool:
        """Whether there was an outage until now."""
        failures, self._failures = self._failures, 0
        return failures > 0

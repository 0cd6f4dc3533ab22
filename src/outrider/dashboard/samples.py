"""The last minutes for the charts, kept in memory while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from outrider.admin.summaries import SinkSummary

_KEPT: Final = 300
_EVERY: Final = 2.0
_INTEREST: Final = 20.0


@dataclass(frozen=True)
class Sample:
    at: float
    pending: int
    delivered: int


class Sampler:
    """Looks every two seconds until nobody has asked for a while; the next who asks starts it."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Sequence[SinkSummary]]],
        *,
        every: float = _EVERY,
        interest: float = _INTEREST,
    ) -> None:
        self._look = look
        self._every = every
        self._interest = interest
        self._kept: deque[Sample] = deque(maxlen=_KEPT)
        self._asked = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def facts(self) -> dict[str, Any]:
        self._asked = time.monotonic()
        if not self.running:
            self._task = asyncio.get_running_loop().create_task(self._sample())
        pairs = list(pairwise(self._kept))
        return {
            "times": [now.at for _, now in pairs],
            "pending": [now.pending for _, now in pairs],
            "rate": [_rate(before, now) for before, now in pairs],
        }

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sample(self) -> None:
        while time.monotonic() - self._asked < self._interest:
            try:
                states = await self._look()
            except (SQLAlchemyError, OSError, TimeoutError):
                states = None  # a gap in the chart tells enough
            if states is not None:
                pending = sum(state.pending for state in states)
                delivered = sum(state.last_delivery_number for state in states)
                self._kept.append(Sample(time.time(), pending, delivered))
            await asyncio.sleep(self._every)


def _rate(before: Sample, now: Sample) -> float:
    return round(max(0, now.delivered - before.delivered) / max(now.at - before.at, 0.001), 1)

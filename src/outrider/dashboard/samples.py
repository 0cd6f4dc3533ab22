"""Samples of the last minutes for the charts, kept in memory while the page is open."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from outrider.admin.summaries import SinkSummary

_MAX_SAMPLES: Final = 300
_INTERVAL_S: Final = 2.0
_IDLE_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True)
class Sample:
    at: float
    pending: int
    delivered: int


class Sampler:
    """Takes a sample every two seconds; stops when nobody asked for a while, and starts again."""

    def __init__(
        self,
        read_sinks: Callable[[], Awaitable[Sequence[SinkSummary]]],
        *,
        interval_s: float = _INTERVAL_S,
        idle_timeout_s: float = _IDLE_TIMEOUT_S,
    ) -> None:
        self._read_sinks = read_sinks
        self._interval_s = interval_s
        self._idle_timeout_s = idle_timeout_s
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def series(self) -> dict[str, list[float]]:
        """The times and values of the charts; starts the sampler if it does not run."""
        self._asked_at = time.monotonic()
        if not self.running:
            self._task = asyncio.get_running_loop().create_task(self._sample())
        pairs = list(pairwise(self._samples))
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
        while time.monotonic() - self._asked_at < self._idle_timeout_s:
            try:
                sinks = await self._read_sinks()
            except (SQLAlchemyError, OSError, TimeoutError):
                sinks = None  # the chart shows a gap
            if sinks is not None:
                pending = sum(sink.pending for sink in sinks)
                delivered = sum(sink.last_delivery_number for sink in sinks)
                self._samples.append(Sample(time.time(), pending, delivered))
            await asyncio.sleep(self._interval_s)


def _rate(before: Sample, now: Sample) -> float:
    return round(max(0, now.delivered - before.delivered) / max(now.at - before.at, 0.001), 1)

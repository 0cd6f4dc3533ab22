"""Cleanup: published events are deleted when their retention is over, in small steps."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from outrider.errors import DatabaseUnavailable
from outrider.signals import EventsDeleted

if TYPE_CHECKING:
    from datetime import timedelta

    from outrider.ports import OutboxMaintenance
    from outrider.relay.leases import HeldLanes
    from outrider.signals import OnSignal

_STEP: Final = 1000
_NEXT_STEP_S: Final = 0.1
_NEXT_ROUND_S: Final = 60.0


class Cleanup:
    """Runs for as long as its relay does."""

    def __init__(
        self,
        maintenance: OutboxMaintenance,
        retention: timedelta | None,
        lanes: HeldLanes,
        sink: str,
        signal: OnSignal,
    ) -> None:
        self._maintenance, self._retention, self._lanes = maintenance, retention, lanes
        self._sink, self._signal = sink, signal

    async def run(self) -> None:
        while self._retention is not None:
            deleted = await self._delete(self._retention)
            if deleted:
                self._signal(EventsDeleted(sink=self._sink, events=deleted))
            pause = _NEXT_STEP_S if deleted == _STEP else _NEXT_ROUND_S
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spread, not secret

    async def _delete(self, retention: timedelta) -> int:
        # The relay that holds the first lane does it, so that one relay does it at a time.
        if 0 not in self._lanes.tokens or not self._lanes.are_valid:
            return 0
        with suppress(DatabaseUnavailable):
            return await self._maintenance.delete_published(retention, _STEP)
        return 0

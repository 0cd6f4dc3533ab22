"""Outages of the database and of the sink: the relay waits, and says so once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.relay.backoff import OutageBackoff, sleep_unless
from outrider.signals import SinkAvailable, SinkUnavailable, StoreAvailable, StoreUnavailable

if TYPE_CHECKING:
    import asyncio

    from outrider.signals import OnSignal


class Outages:
    """Shared by all parts of one relay, so that each outage is reported once."""

    def __init__(self, sink: str, signal: OnSignal, stopping: asyncio.Event) -> None:
        self._sink, self._signal, self._stopping = sink, signal, stopping
        self._sink_backoff, self._store_backoff = OutageBackoff(), OutageBackoff()

    @property
    def problem(self) -> str | None:
        """What is away now, in words for people."""
        if self._store_backoff.active:
            return "the database is unavailable"
        return f"sink {self._sink} is unavailable" if self._sink_backoff.active else None

    async def store_is_down(self, error: Exception) -> None:
        """Wait before the database is tried again."""
        wait = self._store_backoff.next_delay()
        if self._store_backoff.just_started:
            self._signal(StoreUnavailable(sink=self._sink, reason=str(error), wait=wait))
        await sleep_unless(self._stopping, wait)

    def store_is_up(self) -> None:
        if self._store_backoff.reset():
            self._signal(StoreAvailable(sink=self._sink))

    async def sink_is_down(self, reason: str) -> None:
        """Wait before the sink is tried again."""
        wait = self._sink_backoff.next_delay()
        if self._sink_backoff.just_started:
            self._signal(SinkUnavailable(sink=self._sink, reason=reason, wait=wait))
        await sleep_unless(self._stopping, wait)

    def sink_is_up(self) -> None:
        if self._sink_backoff.reset():
            self._signal(SinkAvailable(sink=self._sink))

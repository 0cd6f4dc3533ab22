"""Outages of the database and of the sink: the relay waits, and says so once."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

from outrider.relay.backoff import OutageBackoff, sleep_unless
from outrider.signals import SinkAvailable, SinkUnavailable, StoreAvailable, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outrider.signals import OnSignal

    Connect = Callable[[], Awaitable[str | None]]


class Outages:
    """Shared by all parts of one relay, so that each outage is reported once."""

    def __init__(self, sink: str, signal: OnSignal, stopping: asyncio.Event) -> None:
        self._sink, self._signal, self._stopping = sink, signal, stopping
        self._sink_backoff, self._store_backoff = OutageBackoff(), OutageBackoff()
        self._sink_is_away = asyncio.Event()
        self._published_at = -inf
        self.was_connected = False
        """Whether the publisher was opened; before that, no loop publishes."""

    @property
    def store_problem(self) -> str | None:
        return "the database is unavailable" if self._store_backoff.active else None

    @property
    def sink_problem(self) -> str | None:
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
        """Wait before the loop publishes again."""
        self._published_at = asyncio.get_running_loop().time()
        await self._back_off(reason)

    async def watch_sink(self, problem: str | None, connect: Connect, quiet_s: float) -> None:
        """Report a sink that is away at the start; notice its return while nothing is published.

        `connect` returns why it failed. It is not called while loops publish: a sink may let
        clients connect and yet accept nothing.
        """
        if problem is not None:
            await self._back_off(problem)
        while True:
            await self._sink_is_away.wait()
            busy_s = self._published_at + quiet_s - asyncio.get_running_loop().time()
            if busy_s > 0:
                await asyncio.sleep(busy_s)
            elif (problem := await connect()) is None:
                self.sink_is_up()
            else:
                await self._back_off(problem)

    async def _back_off(self, reason: str) -> None:
        self._sink_is_away.set()
        wait = self._sink_backoff.next_delay()
        if self._sink_backoff.just_started:
            self._signal(SinkUnavailable(sink=self._sink, reason=reason, wait=wait))
        await sleep_unless(self._stopping, wait)

    def sink_is_up(self) -> None:
        self._sink_is_away.clear()
        if self._sink_backoff.reset():
            self._signal(SinkAvailable(sink=self._sink))

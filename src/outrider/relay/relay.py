"""The relay: lease lanes, claim a batch, publish it, settle it, and again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from outrider.errors import BrokerUnavailable, DatabaseUnavailable, OutriderError
from outrider.lanes import LANES_FREE, decode_lanes
from outrider.lifecycle import BackgroundService
from outrider.relay.cleanup import Cleanup
from outrider.relay.config import RelayConfig
from outrider.relay.leases import HeldLanes
from outrider.relay.loop import RelayLoop
from outrider.relay.outages import Outages
from outrider.signals import OnSignal, RelayStarted, RelayStopped, WokenUp

if TYPE_CHECKING:
    from outrider.ports import EventPublisher, RelayStore

_MAX_COUNTED: Final = 10_000
_CLOSE_TIMEOUT_S: Final = 2


class OutboxRelay(BackgroundService):
    """Moves events from a store to a publisher until it is stopped or cancelled.

    `await relay.run()`, or `async with relay:`, or `start()` and `stop()`.
    """

    def __init__(
        self,
        store: RelayStore,
        publisher: EventPublisher,
        config: RelayConfig | None = None,
        *,
        on_signal: OnSignal | None = None,
    ) -> None:
        super().__init__(on_signal)
        self.config = config or RelayConfig()
        self._grace = self.config.grace
        self._store, self._publisher = store, publisher
        self._lanes = HeldLanes(store, store.sink, self.config, self._signal)
        self._outages = Outages(store.sink, self._signal, self._stopping)
        self._loops = [
            RelayLoop(
                number,
                store,
                publisher,
                self.config,
                lanes=self._lanes,
                outages=self._outages,
                stopping=self._stopping,
                signal=self._signal,
            )
            for number in range(self.config.loops)
        ]
        self._cleanup = Cleanup(store, self.config.retention, self._lanes, store.sink, self._signal)
        self._renew_now = asyncio.Event()

    @property
    def _health_problem(self) -> str | None:
        return self._outages.problem

    def _stop_soon(self) -> None:
        self._wake_loops()

    async def _run(self, opened: asyncio.Event) -> None:
        try:
            connected = await self._open()
            await self._lanes.renew()
            self._report_started(connected)
            opened.set()
            async with asyncio.TaskGroup() as tasks:
                duties = [
                    tasks.create_task(self._keep_lease(), name="outrider-lease"),
                    tasks.create_task(self._cleanup.run(), name="outrider-cleanup"),
                ]
                loops = [
                    tasks.create_task(loop.run(), name=f"outrider-loop-{loop.number}")
                    for loop in self._loops
                ]
                await asyncio.wait(loops)
                for duty in duties:
                    duty.cancel()
        finally:
            pending = await self._close()
            published = sum(loop.published for loop in self._loops)
            self._signal(
                RelayStopped(
                    relay=self.config.name,
                    sink=self._store.sink,
                    published=published,
                    pending=pending,
                )
            )

    async def _open(self) -> str:
        """Wait until the database answers; a sink that is down does not delay the start."""
        with suppress(BrokerUnavailable):
            await self._publisher.open()
        while True:
            try:
                return await self._store.open(self._wake)
            except DatabaseUnavailable as error:
                if self._stopping.is_set():
                    raise
                await self._outages.store_is_down(error)

    def _report_started(self, connected: str) -> None:
        self._signal(
            RelayStarted(
                relay=self.config.name,
                sink=self._store.sink,
                store=connected,
                publisher=str(self._publisher),
            )
        )

    def _wake(self, payload: str) -> None:
        """A notification: there may be events, or lanes that another relay has released."""
        lanes = decode_lanes(payload)
        if lanes is not None and lanes.isdisjoint(self._lanes.tokens):
            return
        source = LANES_FREE if payload == LANES_FREE else "notify"
        self._signal(WokenUp(sink=self._store.sink, source=source))
        for loop in self._loops:
            if lanes is None or any(loop.serves(lane) for lane in lanes):
                loop.wake(lanes)
        if payload == LANES_FREE:
            self._renew_now.set()

    def _wake_loops(self) -> None:
        for loop in self._loops:
            loop.wake()

    async def _keep_lease(self) -> None:
        """Renew in a task of its own, which long batches cannot delay."""
        period = self.config.lease.total_seconds() / 4
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._renew_now.wait()
            self._renew_now.clear()
            try:
                if await self._lanes.renew():
                    self._wake_loops()
                self._outages.store_is_up()
            except DatabaseUnavailable as error:
                await self._outages.store_is_down(error)
            for loop in self._loops:
                loop.extend(self._lanes.valid_until)

    async def _close(self) -> int | None:
        """Release everything; returns how many events are pending, if that can be told."""
        pending = None
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._lanes.release_all()
                pending = await self._store.count_pending(_MAX_COUNTED)
        await self._store.close()
        await self._publisher.close()
        return pending

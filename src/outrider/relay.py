"""The relay: lease lanes, claim a batch, publish it, settle it, and again."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from outrider.errors import (
    BrokerUnavailable,
    DatabaseUnavailable,
    OutriderError,
)
from outrider.ports import LANES_FREE, lanes_of
from outrider.relay_state import RelayConfig, RelayState
from outrider.running import Running
from outrider.signals import EventsForgotten, OnSignal, RelayStarted, RelayStopped, WokenUp
from outrider.worker import Worker

if TYPE_CHECKING:
    from outrider.ports import EventPublisher, OutboxStore

_FORGET_STEP: Final = 1000
_COUNTED: Final = 10_000
_FORGET_AGAIN: Final = 0.1
_FORGET_LATER: Final = 60.0


class OutboxRelay(Running):
    """Moves events from a store to a publisher until it is stopped or cancelled.

    `await relay.run()`, or `async with relay:`, or `start()` and `stop()`.
    """

    def __init__(
        self,
        store: OutboxStore,
        publisher: EventPublisher,
        config: RelayConfig | None = None,
        *,
        on_signal: OnSignal | None = None,
    ) -> None:
        super().__init__(on_signal)
        self.config = config or RelayConfig()
        self._grace = self.config.grace
        self._state = RelayState(store, publisher, self.config, self._signal)
        self._stopping = self._state.stopping
        self._workers = [Worker(self._state, number) for number in range(self.config.loops)]
        self._renew_now = asyncio.Event()

    @property
    def _trouble(self) -> str | None:
        return self._state.trouble

    def _stop_soon(self) -> None:
        self._wake_workers()

    async def _run(self, opened: asyncio.Event) -> None:
        state = self._state
        try:
            connected = await self._open()
            await state.renew()
            self._say_started(connected)
            opened.set()
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(self._keep_lease(), name="outrider-lease"),
                    tasks.create_task(self._forget(), name="outrider-forget"),
                ]
                working = [
                    tasks.create_task(worker.run(), name=f"outrider-worker-{worker.number}")
                    for worker in self._workers
                ]
                await asyncio.wait(working)
                for helper in helpers:
                    helper.cancel()
        finally:
            left = await self._close()
            published, name = sum(worker.published for worker in self._workers), self.config.name
            state.signal(RelayStopped(relay=name, sink=state.sink, published=published, left=left))

    async def _open(self) -> str:
        """Connect to the store, however long it takes; a sink that is down is met later."""
        with suppress(BrokerUnavailable):
            await self._state.publisher.open()
        while True:
            try:
                return await self._state.store.open(self._wake)
            except DatabaseUnavailable as error:
                if self._state.stopping.is_set():
                    raise
                await self._state.store_is_down(error)

    def _say_started(self, connected: str) -> None:
        self._state.signal(
            RelayStarted(
                relay=self.config.name,
                sink=self._state.sink,
                store=connected,
                publisher=str(self._state.publisher),
            )
        )

    def _wake(self, word: str) -> None:
        """There may be events, perhaps in lanes of ours, or lanes that another relay released."""
        lanes = lanes_of(word)
        if lanes is not None and lanes.isdisjoint(self._state.lanes):
            return
        source = LANES_FREE if word == LANES_FREE else "notify"
        self._state.signal(WokenUp(sink=self._state.sink, source=source))
        for worker in self._workers:
            if lanes is None or any(worker.serves(lane) for lane in lanes):
                worker.wake(lanes)
        if word == LANES_FREE:
            self._renew_now.set()

    def _wake_workers(self) -> None:
        for worker in self._workers:
            worker.wake()

    async def _keep_lease(self) -> None:
        """A task that work cannot starve; it goes on while the workers finish."""
        period = self.config.lease.total_seconds() / 4
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._renew_now.wait()
            self._renew_now.clear()
            try:
                if await self._state.renew():
                    self._wake_workers()
                self._state.store_is_up()
            except DatabaseUnavailable as error:
                await self._state.store_is_down(error)
            for worker in self._workers:
                worker.extend(self._state.valid_until)

    async def _forget(self) -> None:
        while self.config.retention is not None:
            forgotten = 0
            # Whoever holds the first lane does it, so that it is one relay at a time.
            if 0 in self._state.lanes and self._state.lease_is_valid:
                with suppress(DatabaseUnavailable):
                    forgotten = await self._state.store.forget(self.config.retention, _FORGET_STEP)
            if forgotten:
                self._state.signal(EventsForgotten(sink=self._state.sink, events=forgotten))
            pause = _FORGET_AGAIN if forgotten == _FORGET_STEP else _FORGET_LATER
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spread, not secret

    async def _close(self) -> int | None:
        """Give everything back; how many events are left, if that can be said."""
        left = None
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(2):
                await self._state.store.release(self._state.id, None)
                left = await self._state.store.left(_COUNTED)
        await self._state.store.close()
        await self._state.publisher.close()
        return left

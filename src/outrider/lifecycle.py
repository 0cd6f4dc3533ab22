"""Life cycles: objects that are opened and closed, and services that run in the background."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from outrider.errors import ConfigurationError
from outrider.observability.safe_signals import SafeSignals

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from outrider.signals import OnSignal, Signal


class Openable(ABC):
    """Has `open` and `close`; `async with` calls both."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class BackgroundService(ABC):
    """Runs in one of three ways: `await run()`, `async with`, or `start()` and `stop()`."""

    _grace: timedelta
    _task: asyncio.Task[None] | None = None

    def __init__(self, on_signal: OnSignal | None = None) -> None:
        self.on_signal = on_signal
        """Receives every signal; None if nobody needs them."""
        self._stopping = asyncio.Event()
        self._safe_signals = SafeSignals()

    def _signal(self, signal: Signal) -> None:
        self._safe_signals.send(self.on_signal, signal)

    @abstractmethod
    async def _run(self, opened: asyncio.Event) -> None:
        """Work until `_stopping` is set. Set `opened` as soon as the service is connected."""

    def _stop_soon(self) -> None:  # noqa: B027 - most services need nothing
        """Called by `stop` before it waits for the service to end."""

    @property
    def problem(self) -> str | None:
        """Why the service does no work now, without secrets; None if it works."""
        name = type(self).__name__
        if self._task is None:
            return f"{name} was not started"
        return f"{name} has ended" if self._task.done() else self._health_problem

    @property
    def _health_problem(self) -> str | None:
        """Why a running service does no work now; None if it works."""
        return None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Run in a background task; returns as soon as the service is connected."""
        opened = asyncio.Event()
        task = self._begin(opened)
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            await task

    async def stop(self) -> None:
        """Finish the work in flight within the grace time, then close; safe to call twice."""
        self._stopping.set()
        self._stop_soon()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=self._grace.total_seconds())
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def run(self) -> None:
        """Run until `stop` is called; cancelling this call stops the service cleanly."""
        # A separate task, so that `stop` can cancel it when the grace time is over.
        task = self._begin(asyncio.Event())
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    def _begin(self, opened: asyncio.Event) -> asyncio.Task[None]:
        name = type(self).__name__
        if self._task is not None:
            raise ConfigurationError(f"this {name} was started before; make a new one")
        self._task = asyncio.create_task(self._run(opened), name=f"outrider {name}")
        return self._task

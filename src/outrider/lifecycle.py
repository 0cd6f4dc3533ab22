"""Life cycles: objects that are opened and closed, and services that run in the background."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from outrider.errors import ConfigurationError, OutriderError
from outrider.observability.failure_reason import failure_reason
from outrider.observability.safe_signals import SafeSignals
from outrider.signals import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import timedelta

    from outrider.ports import EventPublisher
    from outrider.signals import OnSignal, Signal

T = TypeVar("T")
_abandoned: Final[set[object]] = set()
"""Keeps tasks that ignore their cancellation; asyncio itself would forget them while they run."""


class _Entered(ABC):
    """`async with` begins it and ends it."""

    @abstractmethod
    async def _enter(self) -> None: ...

    @abstractmethod
    async def _leave(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()


async def open_publisher(publisher: EventPublisher) -> None:
    """Call `open`, which a publisher need not have."""
    if (opens := getattr(publisher, "open", None)) is not None:
        await opens()


async def close_publisher(publisher: EventPublisher) -> None:
    """Call `close`, which a publisher need not have."""
    if (closes := getattr(publisher, "close", None)) is not None:
        await closes()


class Openable(_Entered):
    """Has `open` and `close`; `async with` calls both."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def _enter(self) -> None:
        await self.open()

    async def _leave(self) -> None:
        await self.close()


class BackgroundService(_Entered):
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
        """Work until `_stopping` is set. Set `opened` when connected, or if a broker is away."""

    def _stop_soon(self) -> None:
        """Called by `stop` before it waits for the service to end."""

    @property
    def problem(self) -> str | None:
        """Why the service does no work now, without secrets; None if it works."""
        return self.problem_besides_broker or self._broker_problem

    @property
    def problem_besides_broker(self) -> str | None:
        """The same, but None while only its broker is away: events can be recorded meanwhile."""
        name = type(self).__name__
        if self._task is None:
            return f"{name} was not started"
        return f"{name} has ended" if self._task.done() else self._health_problem

    @property
    def has_failed(self) -> bool:
        """Whether the service has ended although nobody stopped it; only a restart cures that."""
        task = self._task
        has_ended = task is not None and task.done() and not task.cancelled()
        return has_ended and not self._stopping.is_set()

    @property
    def _health_problem(self) -> str | None:
        """Why a running service does no work now, unless its broker is the cause."""
        return None

    @property
    def _broker_problem(self) -> str | None:
        """That its broker is away, if it is."""
        return None

    async def _enter(self) -> None:
        await self.start()

    async def _leave(self) -> None:
        await self.stop()

    async def start(self) -> None:
        """Run in a background task; returns when it is connected, or when its broker is away."""
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
        self._task = asyncio.create_task(self._work(opened), name=f"outrider {name}")
        return self._task

    async def _work(self, opened: asyncio.Event) -> None:
        """Report a failure after the start, since perhaps nobody awaits the task before `stop`."""
        name = type(self).__name__
        try:
            await refuse_own_cancellation(name, lambda: self._run(opened))
        except Exception as error:
            if opened.is_set():
                own = isinstance(error, OutriderError)
                reason = str(error) if own else failure_reason(error)
                self._signal(ServiceFailed(service=name, reason=reason))
            raise


def is_cancelled() -> bool:
    """Whether somebody has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def refuse_own_cancellation(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do work whose CancelledError, if nobody has cancelled it, is an error and not its end."""
    try:
        await work()
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        problem = f"{name} has ended: nobody cancelled it, and yet it raised"
        raise ConfigurationError(f"{problem} {failure_reason(error)}") from error


async def call_apart(name: str, call: Awaitable[T], patience_s: float) -> T:
    """Await foreign code in its own task, so that it cannot ignore a cancellation for ever."""
    if not inspect.isawaitable(call):
        raise ConfigurationError(
            f"{name} returned nothing to await: write its methods as async def"
        )
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await cancel(name, {task}, patience_s)
        raise
    return task.result()


async def cancel(name: str, tasks: Collection[asyncio.Future[Any]], patience_s: float) -> None:
    """Cancel tasks and wait for their end.

    Those that have not ended after `patience_s` are left to themselves, and ConfigurationError is
    raised.
    """
    for task in tasks:
        task.cancel()
    await _wait(tasks, patience_s)
    for task in tasks:
        _abandoned.add(task)
        task.add_done_callback(_forget)
    if not all(task.done() for task in tasks):
        raise ConfigurationError(
            f"{name} has ignored its cancellation for {patience_s:g} s and still runs: let "
            "CancelledError pass there; only a restart of this process ends it now"
        ) from None


async def _wait(tasks: Collection[asyncio.Future[Any]], limit_s: float) -> None:
    """Wait for the end of all, even if this is cancelled again, by another timeout."""
    clock = asyncio.get_running_loop().time
    end = clock() + limit_s
    while (left := end - clock()) > 0 and not all(task.done() for task in tasks):
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, timeout=left)


def _forget(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved, else asyncio logs a warning

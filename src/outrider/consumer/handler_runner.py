"""Calling handlers: each in its scope, within its time, and whatever it does stays its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from outrider.consumer.scopes import watch_for_skips, within
from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    DecodeError,
)
from outrider.signals import EventHandled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from outrider.consumer.scopes import ScopeFactory
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventHandler, Inbox
    from outrider.signals import OnSignal

HandlerOutcome = Literal["ok", "duplicate", "retry", "dead"]
_TO_END: Final = 1.0
_MOST_SCORES: Final = 10_000


class HandlerMisbehaved(Exception):
    """A handler did what no handler may do; the text says what."""


@dataclass(frozen=True)
class Failure:
    """What a handler raised; `verdict` says what is to be done about it."""

    handler: str
    error: BaseException
    verdict: Literal["count", "wait", "never"]

    @property
    def reason(self) -> str:
        """Without the error's own text, which may quote what the event holds."""
        error = self.error
        said = f": {error}" if isinstance(error, HandlerMisbehaved | DecodeError) else ""
        return f"{self.handler}: {type(error).__name__}{said}"


def failure_of(handler: str, error: BaseException) -> Failure:
    match error:
        case DatabaseUnavailable() | BrokerUnavailable() | ConfigurationError():
            # A table that is missing, say, is no fault of the event: it waits for a person.
            return Failure(handler, error, "wait")
        case DecodeError():
            return Failure(handler, error, "never")
        case _:
            return Failure(handler, error, "count")


class HandlerRunner:
    """Calls the handlers of one event after the other, and keeps score: until the event is
    forgotten, a handler that succeeded is not called with it again."""

    def __init__(
        self,
        *,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        timeout: timedelta | None = None,
        on_signal: OnSignal | None = None,
    ) -> None:
        self._scope, self._inbox, self._on_signal = scope, inbox, on_signal
        self._timeout = timeout.total_seconds() if timeout else None
        self._done: dict[UUID, set[str]] = {}
        self._abandoned: set[asyncio.Task[bool]] = set()

    def check(self, handlers: Iterable[EventHandler]) -> None:
        """Refuse at once what would fail with every event."""
        if self._scope is not None or self._inbox is not None:
            return
        for handler in handlers:
            if needs := getattr(handler, "needs", ()):
                raise ConfigurationError(
                    f"{handler.name} asks for {', '.join(needs)}: give a scope or an inbox"
                )

    async def deliver(
        self,
        envelope: EventEnvelope,
        handlers: Sequence[EventHandler],
        *,
        attempt: int = 1,
        last: bool = False,
    ) -> list[Failure]:
        """Every handler runs, even if another one fails."""
        done = self._done.setdefault(envelope.event_id, set())
        if len(self._done) > _MOST_SCORES:
            del self._done[next(iter(self._done))]
        failures = []
        for handler in handlers:
            if handler.name not in done:
                failure = await self._call(handler, envelope, attempt, last=last)
                if failure is None:
                    done.add(handler.name)
                else:
                    failures.append(failure)
        return failures

    def settled(self, event_id: UUID) -> None:
        """The event is settled; its score is needed no more."""
        self._done.pop(event_id, None)

    async def _call(
        self, handler: EventHandler, envelope: EventEnvelope, attempt: int, *, last: bool
    ) -> Failure | None:
        started = time.perf_counter()
        failure = None
        outcome: HandlerOutcome = "ok"
        try:
            if not await self._within_time(handler, envelope):
                outcome = "duplicate"
        except asyncio.CancelledError:
            raise  # it is we who are cancelled: a handler's own never gets this far
        except BaseException as error:  # noqa: BLE001 - whatever it is, the others go on
            failure = failure_of(handler.name, error)
            gives_up = failure.verdict == "never" or (last and failure.verdict == "count")
            outcome = "dead" if gives_up else "retry"
        if self._on_signal is not None:
            self._on_signal(
                EventHandled(
                    handler=handler.name,
                    event_id=envelope.event_id,
                    event_type=envelope.event_type,
                    correlation_id=envelope.metadata.correlation_id,
                    outcome=outcome,
                    attempt=attempt,
                    took=timedelta(seconds=time.perf_counter() - started),
                    reason=failure.reason if failure else None,
                )
            )
        return failure

    async def _within_time(self, handler: EventHandler, envelope: EventEnvelope) -> bool:
        """In a task of its own, so that its cancellation is not ours, nor ours its."""
        began = asyncio.Event()
        work = self._run(handler, envelope, began)
        task = asyncio.create_task(work, name=f"handler {handler.name}")
        try:
            finished, _ = await asyncio.wait({task}, timeout=self._timeout)
        except asyncio.CancelledError:
            await self._end(task)
            raise
        if not finished:
            await self._end(task)
            if not began.is_set():
                raise DatabaseUnavailable(f"no scope or transaction within {self._timeout:g} s")
            # Also if it ended well after all: it was late, and may have lost its lease or lock.
            raise HandlerMisbehaved(f"took longer than {self._timeout:g} s")
        if task.cancelled():
            raise HandlerMisbehaved("raised CancelledError")
        return task.result()

    async def _end(self, task: asyncio.Task[bool]) -> None:
        """Cancel it; one that swallows that is left behind."""
        task.cancel()
        _, running = await asyncio.wait({task}, timeout=_TO_END)
        for left in running:
            self._abandoned.add(left)
            left.add_done_callback(self._abandoned.discard)
        if task.done() and not task.cancelled():
            task.exception()  # seen, so that nobody warns about it

    async def _run(
        self, handler: EventHandler, envelope: EventEnvelope, began: asyncio.Event
    ) -> bool:
        """Whether the handler was called, and not skipped as a duplicate."""
        try:
            async with AsyncExitStack() as stack:
                if self._scope is not None:
                    stack.enter_context(
                        within(await stack.enter_async_context(self._scope(envelope)))
                    )
                if self._inbox is not None:
                    once = self._inbox.once(envelope, handler.name)
                    if not await stack.enter_async_context(once):
                        return False
                began.set()
                skips = watch_for_skips()
                await handler.handle(envelope)
                return not skips
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised through a task, these would end the whole event loop.
            raise HandlerMisbehaved(f"raised {type(error).__name__}") from None

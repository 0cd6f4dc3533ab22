"""The handler runner: calls each handler in its own scope, with a timeout, and isolates errors."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from outrider.consumer.scopes import collect_skips, use_scope
from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    DecodeError,
    name_of,
)
from outrider.observability.failure_reason import failure_reason, waiting_place
from outrider.observability.safe_signals import SafeSignals
from outrider.ports import Inbox
from outrider.signals import EventHandled, EventUnhandled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from outrider.consumer.scopes import ScopeFactory
    from outrider.events.envelope import EventEnvelope
    from outrider.observability.failure_reason import ErrorDetail
    from outrider.ports import EventHandler
    from outrider.signals import OnSignal

HandlerOutcome = Literal["ok", "duplicate", "wait", "retry", "dead"]
_CANCEL_TIMEOUT_S: Final = 1.0
_MAX_REMEMBERED_EVENTS: Final = 10_000


class HandlerMisbehaved(Exception):
    """A handler broke the rules for handlers; the text says which rule."""


_NOT_THE_EVENT: Final = (DatabaseUnavailable, BrokerUnavailable, ConfigurationError)
_OWN_ERRORS: Final = (HandlerMisbehaved, DecodeError, *_NOT_THE_EVENT)
"""Errors of this library, whose text has no values."""


@dataclass(frozen=True)
class Failure:
    """An error of a handler; `verdict` says whether it counts as an attempt, waits or is final."""

    handler: str
    error: BaseException
    verdict: Literal["count", "wait", "never"]
    reason: str
    """Without the text of foreign errors, which may quote the payload, unless asked for."""


async def finish(result: object) -> None:
    """Await what a handler returned, if that can be awaited. Refuse work that nobody would do."""
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        raise HandlerMisbehaved(
            f"returned a {type(result).__name__} that nobody runs: await it, or remove the yield"
        )


def failure_of(handler: str, error: BaseException, detail: ErrorDetail = "place") -> Failure:
    own = isinstance(error, _OWN_ERRORS)
    text = f"{type(error).__name__}: {error}" if own else failure_reason(error, detail)
    return Failure(handler, error, _verdict(error), f"{handler}: {text}")


def _verdict(error: BaseException) -> Literal["count", "wait", "never"]:
    if isinstance(error, _NOT_THE_EVENT):
        return "wait"  # a missing table, for example, must be created first
    return "never" if isinstance(error, DecodeError) else "count"


def _failed_outcome(failure: Failure, *, last: bool) -> HandlerOutcome:
    if failure.verdict == "wait":
        return "wait"
    return "dead" if last or failure.verdict == "never" else "retry"


class HandlerRunner:
    """Calls the handlers of an event one after the other, and remembers which handlers are done.

    A handler that succeeded is not called with the same event again until `settled` is called.
    """

    def __init__(
        self,
        *,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        timeout: timedelta | None = None,
        on_signal: OnSignal | None = None,
    ) -> None:
        if inbox is not None and (isinstance(inbox, type) or not isinstance(inbox, Inbox)):
            raise ConfigurationError(
                f"inbox: got {name_of(inbox)}: write SqlInbox(async_sessionmaker(engine))"
            )
        self._scope, self._inbox, self._on_signal = scope, inbox, on_signal
        self._safe_signals = SafeSignals()
        self._timeout = timeout.total_seconds() if timeout else None
        self._done: dict[UUID, set[str]] = {}
        self._abandoned: set[asyncio.Task[bool]] = set()
        self._told_unhandled: set[str] = set()
        self._waiting: dict[UUID, str] = {}
        self._told_waits: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Why an event waits without the fault of its handlers, if one does."""
        return next(iter(self._waiting.values()), None)

    def check(self, handlers: Iterable[EventHandler]) -> None:
        """Refuse handlers that would fail with every event."""
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
        error_detail: ErrorDetail = "place",
    ) -> list[Failure]:
        """Call every handler that is not done, also after another handler failed."""
        done = self._done.setdefault(envelope.event_id, set())
        if len(self._done) > _MAX_REMEMBERED_EVENTS:
            del self._done[next(iter(self._done))]
        failures = []
        for handler in handlers:
            if handler.name not in done:
                failure = await self._call(handler, envelope, attempt, error_detail, last=last)
                if failure is None:
                    done.add(handler.name)
                else:
                    failures.append(failure)
        self._note_wait(envelope.event_id, failures)
        return failures

    def _note_wait(self, event_id: UUID, failures: Sequence[Failure]) -> None:
        self._waiting.pop(event_id, None)
        waits = [failure.reason for failure in failures if failure.verdict == "wait"]
        if waits and len(self._waiting) < _MAX_REMEMBERED_EVENTS:
            self._waiting[event_id] = waits[0]

    def tell_unhandled(self, envelope: EventEnvelope) -> None:
        """An event without a handler was accepted: tell it once for each event type."""
        told, event_type = self._told_unhandled, envelope.event_type
        if event_type in told or len(told) >= _MAX_REMEMBERED_EVENTS:
            return
        told.add(event_type)
        if self._on_signal is not None:
            self._on_signal(
                EventUnhandled(
                    event_id=envelope.event_id,
                    event_type=event_type,
                    correlation_id=envelope.metadata.correlation_id,
                )
            )

    def settled(self, event_id: UUID) -> None:
        """The event is settled: drop the record of its finished handlers."""
        self._done.pop(event_id, None)
        self._waiting.pop(event_id, None)

    async def _call(
        self,
        handler: EventHandler,
        envelope: EventEnvelope,
        attempt: int,
        detail: ErrorDetail,
        *,
        last: bool,
    ) -> Failure | None:
        started = time.perf_counter()
        failure = None
        outcome: HandlerOutcome = "ok"
        try:
            if not await self._call_with_timeout(handler, envelope):
                outcome = "duplicate"
        except asyncio.CancelledError:
            raise  # the caller was cancelled; a CancelledError of the handler never gets this far
        except BaseException as error:  # noqa: BLE001 - no error of a handler may stop the others
            failure = failure_of(handler.name, error, detail)
            outcome = _failed_outcome(failure, last=last)
            if outcome == "wait" and self._told_waits.get(handler.name) == failure.reason:
                return failure  # told before, and it still lasts
        self._told_waits.pop(handler.name, None)
        if failure and outcome == "wait":
            self._told_waits[handler.name] = failure.reason
        handled = EventHandled(
            handler=handler.name,
            event_id=envelope.event_id,
            event_type=envelope.event_type,
            correlation_id=envelope.metadata.correlation_id,
            outcome=outcome,
            attempt=attempt,
            took=timedelta(seconds=time.perf_counter() - started),
            reason=failure.reason if failure else None,
        )
        self._safe_signals.send(self._on_signal, handled)
        return failure

    async def _call_with_timeout(self, handler: EventHandler, envelope: EventEnvelope) -> bool:
        """Runs in its own task, so that cancelling the handler does not cancel the caller.

        The reverse holds too.
        """
        began = asyncio.Event()
        work = self._run(handler, envelope, began)
        task = asyncio.create_task(work, name=f"handler {handler.name}")
        try:
            finished, _ = await asyncio.wait({task}, timeout=self._timeout)
        except asyncio.CancelledError:
            await self._cancel(task)
            raise
        if not finished:
            place = waiting_place(task)
            await self._cancel(task)
            if not began.is_set():
                raise DatabaseUnavailable(f"no scope or transaction within {self._timeout:g} s")
            # A failure even if it succeeded late: it may have lost a lock or a lease meanwhile.
            raise HandlerMisbehaved(f"took longer than {self._timeout:g} s, at {place}")
        if task.cancelled():
            raise HandlerMisbehaved("raised CancelledError")
        return task.result()

    async def _cancel(self, task: asyncio.Task[bool]) -> None:
        """Cancel the task; do not wait for a task that suppresses the cancellation."""
        task.cancel()
        _, running = await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT_S)
        for abandoned in running:
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
        if task.done() and not task.cancelled():
            task.exception()  # marks it as retrieved, else asyncio logs a warning

    async def _run(
        self, handler: EventHandler, envelope: EventEnvelope, began: asyncio.Event
    ) -> bool:
        """Call the handler; returns False if it was skipped as a duplicate."""
        try:
            async with AsyncExitStack() as stack:
                if self._scope is not None:
                    stack.enter_context(
                        use_scope(await stack.enter_async_context(self._scope(envelope)))
                    )
                if self._inbox is not None:
                    once = self._inbox.once(envelope, handler.name)
                    if not await stack.enter_async_context(once):
                        return False
                began.set()
                skips = collect_skips()
                await finish(handler.handle(envelope))
                return not skips
        except (SystemExit, KeyboardInterrupt) as error:
            # If a task raises these, asyncio stops the whole event loop.
            raise HandlerMisbehaved(f"raised {type(error).__name__}") from None

"""The consumer: receives events from a broker and calls handlers, in order per aggregate."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outrider.consumer.handler_runner import HandlerRunner
from outrider.consumer.losses import LossReport
from outrider.consumer.subscriptions import (
    NO_HANDLER,
    Subscriptions,
    Unhandled,
    unhandled_problems,
)
from outrider.consumer.suspects import Suspects, suspected
from outrider.errors import BrokerUnavailable, ConfigurationError, name_of
from outrider.lifecycle import BackgroundService, cancel, refuse_own_cancellation
from outrider.observability.failure_reason import DETAILS
from outrider.observability.logging import log_signals
from outrider.ports import EventSource
from outrider.relay.backoff import OutageBackoff, sleep_unless
from outrider.relay.config import config_or_default, refuse_wrong_types
from outrider.relay.retry import ExponentialRetry, RetryPolicy
from outrider.signals import (
    ConsumerStarted,
    ConsumerStopped,
    EventDeadLettered,
    MessagesLost,
    SourceAvailable,
    SourceUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from outrider.consumer.handler_runner import Failure
    from outrider.consumer.scopes import ScopeFactory
    from outrider.events.envelope import EventEnvelope
    from outrider.observability.failure_reason import ErrorDetail
    from outrider.ports import Delivery, EventHandler, Inbox
    from outrider.signals import OnSignal

    _Aggregate = tuple[str, str]

T = TypeVar("T")
_CANCEL_TIMEOUT_S: Final = 5.0


def _default_retry() -> RetryPolicy:
    return ExponentialRetry(first=timedelta(milliseconds=200), cap=timedelta(seconds=30))


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """The settings of a consumer."""

    name: str = "consumer"
    """The name in logs and metrics."""
    concurrency: int = 16
    """How many events are handled at once, each of another aggregate. A higher number needs more
    database connections."""
    prefetch: int = 256
    """The maximum number of unacknowledged messages; after a crash, they are delivered again."""
    handler_timeout: timedelta | None = timedelta(seconds=30)
    """How long one handler may take for one event; None for no limit."""
    retry: RetryPolicy = field(default_factory=_default_retry)
    """When a failed event is retried; later events of its aggregate wait until then."""
    max_retries: int = 8
    """After so many failed attempts a message becomes a dead letter."""
    max_crashes: int = 3
    """After so many crashes of a process that handled nothing else, a message becomes a dead
    letter. A lost connection is no crash."""
    unhandled: Unhandled = "accept"
    """What to do with an event that no handler subscribed to: `accept` acknowledges it, and tells
    its type once; `refuse` makes it a dead letter."""
    grace: timedelta = timedelta(seconds=25)
    """How long `stop` waits for running handlers."""
    error_detail: ErrorDetail = "place"
    """What logs and dead letters tell of a handler's error: `place` is its class, file, line and
    function; `message` adds its text, which may quote payloads; `traceback` adds all lines."""

    def __post_init__(self) -> None:
        refuse_wrong_types("consumer", self)
        problems = [
            f"{name} must be at least 1"
            for name in ("concurrency", "prefetch", "max_retries", "max_crashes")
            if getattr(self, name) < 1
        ]
        problems += unhandled_problems(self.unhandled)
        if self.error_detail not in DETAILS:
            problems.append(f"error_detail must be {' or '.join(DETAILS)}")
        if problems:
            raise ConfigurationError("consumer: " + "; ".join(problems))


class EventConsumer(BackgroundService):
    """Runs handlers for received events, and acknowledges an event when all of them are done.

    Events of one aggregate are handled one after the other, different aggregates concurrently. A
    failed handler is retried with backoff, while later events of the aggregate wait. An event that
    has no attempts left, or cannot be decoded, becomes a dead letter; then the next event is
    handled. An outage of the database costs no attempt.
    """

    def __init__(
        self,
        source: EventSource,
        handlers: Iterable[tuple[str, EventHandler]] | None = None,
        config: ConsumerConfig | None = None,
        *,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        on_signal: OnSignal | None = log_signals,
    ) -> None:
        if isinstance(source, type) or not isinstance(source, EventSource):
            raise ConfigurationError(
                f"a consumer takes a source, got {name_of(source)}: write "
                "EventConsumer(RabbitMQSource(url, …), handlers), or the source of another broker"
            )
        super().__init__(on_signal)
        self.config = config_or_default(config, ConsumerConfig)
        self._grace = self.config.grace
        self._source = source
        self._handlers = Subscriptions(handlers)
        self._runner = HandlerRunner(
            scope=scope,
            inbox=inbox,
            timeout=self.config.handler_timeout,
            on_signal=self._signal,
        )
        self._queues: dict[_Aggregate, deque[Delivery]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = asyncio.Semaphore(self.config.concurrency)
        self._suspects = Suspects(source, self._in_flight, self.config)
        self._unacknowledged = 0
        self._finished_one = asyncio.Event()
        self._handled = 0
        self._failed: asyncio.Future[None]
        self._backoff = OutageBackoff()

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        self._handlers.subscribe(event_type, handler)

    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None:
        self._handlers.subscribe_all(event_types, handler)

    @property
    def _broker_problem(self) -> str | None:
        return "the broker is unavailable" if self._backoff.active else self._runner.problem

    async def _run(self, opened: asyncio.Event) -> None:
        self._handlers.open()
        self._runner.check(handler for _, handler in self._handlers)
        receiving = asyncio.create_task(self._receive(opened), name="outrider-receive")
        stopping = asyncio.create_task(self._stopping.wait())
        self._failed = asyncio.get_running_loop().create_future()
        ends: set[asyncio.Future[Any]] = {receiving, stopping, self._failed}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for future in (self._failed, receiving):
                if future.done():
                    future.result()
            receiving.cancel()
            await asyncio.wait({receiving})
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            try:
                tasks = (receiving, stopping, *self._tasks)
                await cancel("the source", tasks, _CANCEL_TIMEOUT_S)
            finally:
                await self._close()

    async def _close(self) -> None:
        await self._suspects.take_all_back()
        await self._source.close()
        self._report_losses()
        self._signal(ConsumerStopped(consumer=self.config.name, handled=self._handled))

    async def _receive(self, opened: asyncio.Event) -> None:
        await self._until_available(lambda: self._open(opened))
        self._signal(ConsumerStarted(consumer=self.config.name, source=str(self._source)))
        opened.set()
        while True:
            while self._unacknowledged >= self.config.prefetch:
                self._finished_one.clear()
                await self._finished_one.wait()
            limit = self.config.prefetch - self._unacknowledged
            for delivery in await self._until_available(lambda: self._source.receive(limit)):  # noqa: B023 - called at once
                self._enqueue(delivery)
            self._report_losses()

    async def _open(self, opened: asyncio.Event) -> None:
        """A broker that is away is told, and does not delay the start of an application."""
        try:
            await self._source.open()
        except BrokerUnavailable:
            opened.set()
            raise

    def _report_losses(self) -> None:
        source = self._source
        for loss in source.take_losses() if isinstance(source, LossReport) else ():
            lost = MessagesLost(
                consumer=self.config.name,
                source=str(source),
                first=loss.first,
                last=loss.last,
                count=loss.count,
                reason=loss.reason,
            )
            self._signal(lost)

    async def _until_available(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the call, with backoff, until the broker answers."""
        while True:
            try:
                result = await call()
            except BrokerUnavailable as error:
                await self._back_off(str(error))
            else:
                self._end_outage()
                return result

    async def _back_off(self, reason: str) -> None:
        wait = self._backoff.next_delay()
        if self._backoff.just_started:
            down = SourceUnavailable(consumer=self.config.name, reason=reason, wait=wait)
            self._signal(down)
        await sleep_unless(self._stopping, wait)

    def _end_outage(self) -> None:
        if self._backoff.reset():
            self._signal(SourceAvailable(consumer=self.config.name))

    def _enqueue(self, delivery: Delivery) -> None:
        """Append to the queue of the aggregate; each queue has one task that empties it."""
        self._unacknowledged += 1
        aggregate = _aggregate_of(delivery)
        if aggregate in self._queues:
            self._queues[aggregate].append(delivery)
            return
        self._queues[aggregate] = deque([delivery])
        draining = refuse_own_cancellation("the source", lambda: self._drain(aggregate))
        task = asyncio.create_task(draining, name="outrider-handle")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """An unexpected error of the source stops the whole consumer, not only this aggregate."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._failed.done():
            self._failed.set_exception(error)

    async def _drain(self, aggregate: _Aggregate) -> None:
        queue = self._queues[aggregate]
        try:
            while queue:
                if not self._stopping.is_set():
                    await self._handle(queue[0])
                queue.popleft()
                self._unacknowledged -= 1
                self._finished_one.set()
        finally:
            del self._queues[aggregate]

    async def _handle(self, delivery: Delivery) -> None:
        """Return when the message is acknowledged, a dead letter, or will be delivered again."""
        envelope = delivery.envelope
        if envelope is None:
            await self._dead_letter(delivery, delivery.problem or "no event")
        elif not (handlers := self._handlers.of(envelope.event_type)):
            await self._settle_unhandled(delivery, envelope)
        else:
            if 0 < delivery.crash_count < self.config.max_crashes:
                self._signal(suspected(self.config.name, envelope, delivery.crash_count))
            await self._run_handlers(delivery, envelope, handlers)
            await self._take_crash_back(delivery)
            self._runner.settled(envelope.event_id)

    async def _run_handlers(
        self, delivery: Delivery, envelope: EventEnvelope, handlers: Sequence[EventHandler]
    ) -> None:
        attempt, outage = 1, OutageBackoff()
        while not (delivery.lost or self._stopping.is_set()):
            last = attempt >= self.config.max_retries
            deliver = partial(
                self._runner.deliver,
                envelope,
                handlers,
                attempt=attempt,
                last=last,
                error_detail=self.config.error_detail,
            )
            try:
                failures = await self._attempt(delivery, deliver)
            except BrokerUnavailable as error:
                await self._back_off(str(error))
                continue
            if not failures:
                self._handled += 1
                await self._settle(delivery, lambda: self._source.acknowledge(delivery))
                return
            counted = [failure for failure in failures if failure.verdict != "wait"]
            if counted and (last or any(f.verdict == "never" for f in counted)):
                await self._dead_letter(delivery, _reason(failures))
                return
            if counted:
                delay = self.config.retry.delay_after(attempt)
                attempt += 1
            else:
                delay = outage.next_delay()
            await self._take_crash_back(delivery)
            await sleep_unless(self._stopping, delay)

    async def _attempt(
        self, delivery: Delivery, deliver: Callable[[], Awaitable[list[Failure]]]
    ) -> list[Failure]:
        """Raises BrokerUnavailable if the crash of a suspect cannot be counted before."""
        if not delivery.suspect:
            async with self._in_flight:
                return await deliver()
        async with self._suspects.alone():
            return await self._suspects.problems(delivery) or await deliver()

    async def _take_crash_back(self, delivery: Delivery) -> None:
        if delivery in self._suspects.counted:
            await self._repeat(lambda: self._suspects.take_back(delivery), lambda: True)

    async def _settle_unhandled(self, delivery: Delivery, envelope: EventEnvelope) -> None:
        if self.config.unhandled == "refuse":
            # At once: waiting does not help, since this process gets no other handlers.
            await self._dead_letter(delivery, NO_HANDLER)
        else:
            self._runner.tell_unhandled(envelope)
            await self._settle(delivery, lambda: self._source.acknowledge(delivery))

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        if not await self._settle(delivery, lambda: self._source.dead_letter(delivery, reason)):
            return
        envelope = delivery.envelope
        self._signal(
            EventDeadLettered(
                consumer=self.config.name,
                event_id=envelope.event_id if envelope else None,
                event_type=envelope.event_type if envelope else None,
                correlation_id=envelope.metadata.correlation_id if envelope else None,
                reason=reason,
            )
        )

    async def _settle(self, delivery: Delivery, call: Callable[[], Awaitable[None]]) -> bool:
        """Returns whether the broker settled the message; else it will deliver it again."""
        settled = await self._repeat(call, lambda: not delivery.lost) and not delivery.lost
        if settled:
            self._suspects.counted.discard(delivery)
        return settled

    async def _repeat(
        self, call: Callable[[], Awaitable[None]], is_needed: Callable[[], bool]
    ) -> bool:
        """Repeat the call until the broker answers; returns whether it did."""
        while is_needed():
            try:
                await call()
            except BrokerUnavailable as error:
                if self._stopping.is_set():
                    return False
                await self._back_off(str(error))
            else:
                return True
        return False


def _aggregate_of(delivery: Delivery) -> _Aggregate:
    envelope = delivery.envelope
    return (envelope.aggregate_type, envelope.aggregate_id) if envelope else ("", "")


def _reason(failures: Sequence[Failure]) -> str:
    return "; ".join(failure.reason for failure in failures)

"""The consumer: receives events from a broker and brings them to handlers, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from outrider.consumer.handler_runner import HandlerRunner
from outrider.consumer.subscriptions import Subscriptions
from outrider.errors import BrokerUnavailable, ConfigurationError
from outrider.lifecycle import BackgroundService
from outrider.relay.backoff import OutageBackoff, sleep_unless
from outrider.relay.retry import ExponentialRetry, RetryPolicy
from outrider.signals import (
    ConsumerStarted,
    ConsumerStopped,
    EventDeadLettered,
    SourceAvailable,
    SourceUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from outrider.consumer.handler_runner import Failure
    from outrider.consumer.scopes import ScopeFactory
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import Delivery, EventHandler, EventSource, Inbox
    from outrider.signals import OnSignal


T = TypeVar("T")


def _patient() -> RetryPolicy:
    return ExponentialRetry(
        first=timedelta(milliseconds=200), cap=timedelta(seconds=30), attempts=8
    )


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """How a consumer works."""

    name: str = "consumer"
    """What people see."""
    concurrency: int = 16
    """How many events are handled at once, each of another aggregate; more needs more
    connections to the database."""
    prefetch: int = 256
    """Most messages taken from the broker and not acknowledged; what a crash repeats."""
    handler_timeout: timedelta | None = timedelta(seconds=30)
    """How long one handler may take for one event."""
    retry: RetryPolicy = field(default_factory=_patient)
    """When a failed event is tried again; its aggregate waits meanwhile."""
    max_deliveries: int | None = 100
    """How often a broker that counts may hand out a message before it is set aside unseen: it
    may be what kills the consumer."""
    unhandled: Literal["acknowledge", "dead letter"] = "acknowledge"
    """What becomes of events that no handler subscribed to."""
    grace: timedelta = timedelta(seconds=25)
    """How long `stop` waits for handlers that run."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1"
            for name in ("concurrency", "prefetch", "max_deliveries")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        if self.unhandled not in ("acknowledge", "dead letter"):
            problems.append('unhandled must be "acknowledge" or "dead letter"')
        if problems:
            raise ConfigurationError("consumer: " + "; ".join(problems))


class EventConsumer(BackgroundService):
    """Runs handlers for what a source receives, and acknowledges after they are done.

    Events of one aggregate are handled one after the other, different aggregates side by side.
    A handler that fails is called again after a while, and what comes behind waits; at the end
    of its attempts, or if it cannot be decoded, a message is set aside and the rest goes on. A
    database that is away costs no attempt.
    """

    def __init__(
        self,
        source: EventSource,
        handlers: Iterable[tuple[str, EventHandler]] = (),
        config: ConsumerConfig | None = None,
        *,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        on_signal: OnSignal | None = None,
    ) -> None:
        super().__init__(on_signal)
        self.config = config or ConsumerConfig()
        self._grace = self.config.grace
        self._source = source
        self._handlers = Subscriptions(handlers)
        self._runner = HandlerRunner(
            scope=scope,
            inbox=inbox,
            timeout=self.config.handler_timeout,
            on_signal=self._signal,
        )
        self._lines: dict[tuple[str, str], deque[Delivery]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(self.config.concurrency)
        self._in_hand = 0
        self._changed = asyncio.Event()
        self._handled = 0
        self._fault: asyncio.Future[None]
        self._pause = OutageBackoff()

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        self._handlers.subscribe(event_type, handler)

    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None:
        self._handlers.subscribe_all(event_types, handler)

    @property
    def _health_problem(self) -> str | None:
        return "the broker is unavailable" if self._pause.active else None

    async def _run(self, opened: asyncio.Event) -> None:
        self._runner.check(handler for _, handler in self._handlers)
        receiving = asyncio.create_task(self._receive(opened), name="outrider-receive")
        stopping = asyncio.create_task(self._stopping.wait())
        self._fault = asyncio.get_running_loop().create_future()
        ends: set[asyncio.Future[Any]] = {receiving, stopping, self._fault}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._fault, receiving):
                if end.done():
                    end.result()
            receiving.cancel()
            await asyncio.wait({receiving})
            if self._workers:
                await asyncio.wait(self._workers)
        finally:
            await self._end(receiving, stopping, *self._workers)
            await self._source.close()
            stopped = ConsumerStopped(consumer=self.config.name, handled=self._handled)
            self._signal(stopped)

    async def _end(self, *tasks: asyncio.Task[object]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, opened: asyncio.Event) -> None:
        await self._until_available(self._source.open)
        self._signal(ConsumerStarted(consumer=self.config.name, source=str(self._source)))
        opened.set()
        while True:
            while self._in_hand >= self.config.prefetch:
                self._changed.clear()
                await self._changed.wait()
            room = self.config.prefetch - self._in_hand
            for delivery in await self._until_available(lambda: self._source.receive(room)):  # noqa: B023 - called at once
                self._take(delivery)

    async def _until_available(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, however long the broker is away."""
        while True:
            try:
                result = await work()
            except BrokerUnavailable as error:
                await self._wait_for(str(error))
            else:
                self._is_back()
                return result

    async def _wait_for(self, reason: str) -> None:
        wait = self._pause.next_delay()
        if self._pause.just_started:
            down = SourceUnavailable(consumer=self.config.name, reason=reason, wait=wait)
            self._signal(down)
        await sleep_unless(self._stopping, wait)

    def _is_back(self) -> None:
        if self._pause.reset():
            self._signal(SourceAvailable(consumer=self.config.name))

    def _take(self, delivery: Delivery) -> None:
        """Put it at the end of its aggregate's line; a new line gets a worker."""
        self._in_hand += 1
        line = _line_of(delivery)
        if line in self._lines:
            self._lines[line].append(delivery)
            return
        self._lines[line] = deque([delivery])
        worker = asyncio.create_task(self._work(line), name="outrider-handle")
        self._workers.add(worker)
        worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """What a source may not raise ends the consumer: half of it would be worse."""
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) and not self._fault.done():
            self._fault.set_exception(error)

    async def _work(self, line: tuple[str, str]) -> None:
        waiting = self._lines[line]
        try:
            while waiting:
                if not self._stopping.is_set():
                    await self._handle(waiting[0])
                waiting.popleft()
                self._in_hand -= 1
                self._changed.set()
        finally:
            del self._lines[line]

    async def _handle(self, delivery: Delivery) -> None:
        """Until it is acknowledged or set aside; or lost, or we stop, and it comes again."""
        envelope, limit = delivery.envelope, self.config.max_deliveries
        if envelope is None:
            await self._dead_letter(delivery, delivery.problem or "no event")
        elif limit is not None and delivery.delivery_count > limit:
            await self._dead_letter(delivery, f"was handed out {delivery.delivery_count} times")
        elif not (handlers := self._handlers.of(envelope.event_type)):
            await self._leave(delivery)
        else:
            await self._try(delivery, envelope, handlers)
            self._runner.settled(envelope.event_id)

    async def _try(
        self, delivery: Delivery, envelope: EventEnvelope, handlers: Sequence[EventHandler]
    ) -> None:
        attempt, outage = 1, OutageBackoff()
        while not (delivery.lost or self._stopping.is_set()):
            wait = self.config.retry.delay_after(attempt)
            async with self._slots:
                failures = await self._runner.deliver(
                    envelope, handlers, attempt=attempt, last=wait is None
                )
            if not failures:
                self._handled += 1
                await self._settle(delivery, lambda: self._source.acknowledge(delivery))
                return
            counted = [failure for failure in failures if failure.verdict != "wait"]
            if counted and (wait is None or any(f.verdict == "never" for f in counted)):
                await self._dead_letter(delivery, _reason(failures))
                return
            if counted:
                attempt += 1
            pause = wait if counted and wait is not None else outage.next_delay()
            await sleep_unless(self._stopping, pause)

    async def _leave(self, delivery: Delivery) -> None:
        if self.config.unhandled == "dead letter":
            await self._dead_letter(delivery, "no handler subscribed to its type")
        else:
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

    async def _settle(self, delivery: Delivery, tell: Callable[[], Awaitable[None]]) -> bool:
        """Tell the broker, unless it has taken the message back meanwhile."""
        while not delivery.lost:
            try:
                await tell()
            except BrokerUnavailable as error:
                if self._stopping.is_set():
                    return False
                await self._wait_for(str(error))
            else:
                return not delivery.lost
        return False


def _line_of(delivery: Delivery) -> tuple[str, str]:
    envelope = delivery.envelope
    return (envelope.aggregate_type, envelope.aggregate_id) if envelope else ("", "")


def _reason(failures: Sequence[Failure]) -> str:
    return "; ".join(failure.reason for failure in failures)

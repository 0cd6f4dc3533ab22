"""The relay: lease lanes, claim a batch, publish it, settle it, and again."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, TypeVar

from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    OutriderError,
    name_of,
)
from outrider.lanes import LANES_FREE, decode_lanes
from outrider.lifecycle import (
    BackgroundService,
    call_apart,
    close_publisher,
    open_publisher,
    refuse_own_cancellation,
)
from outrider.observability.failure_reason import failure_reason
from outrider.observability.logging import log_signals
from outrider.relay.backoff import MAX_OUTAGE_DELAY
from outrider.relay.cleanup import Cleanup
from outrider.relay.config import RelayConfig, config_or_default
from outrider.relay.leases import HeldLanes
from outrider.relay.loop import RelayLoop
from outrider.relay.outages import Outages
from outrider.signals import EventLoopBlocked, OnSignal, RelayStarted, RelayStopped, WokenUp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outrider.ports import EventPublisher, RelayStore

T = TypeVar("T")

_MAX_COUNTED: Final = 10_000
_CLOSE_TIMEOUT_S: Final = 2


class OutboxRelay(BackgroundService):
    """Moves events from a store to a publisher until it is stopped or cancelled.

    `await relay.run()`, or `async with relay:`, or `start()` and `stop()`.
    """

    def __new__(
        cls, store: object = None, publisher: object = None, *_: object, **__: object
    ) -> Self:
        """Says how a relay is made before Python says that an argument is missing."""
        wrong = publisher if hasattr(store, "claim") else store
        if wrong is store or isinstance(wrong, type) or not _publishes(wrong):
            raise ConfigurationError(
                f"a relay takes a store and a publisher, got {name_of(wrong)}: write "
                "OutboxRelay(SqlOutboxStore(engine), publisher)"
            )
        _check_publisher(wrong)
        return super().__new__(cls)

    def __init__(
        self,
        store: RelayStore,
        publisher: EventPublisher,
        config: RelayConfig | None = None,
        *,
        on_signal: OnSignal | None = log_signals,
    ) -> None:
        super().__init__(on_signal)
        self.config = config_or_default(config, RelayConfig)
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
                connect=self._connect_sink,
                stopping=self._stopping,
                signal=self._signal,
            )
            for number in range(self.config.loops)
        ]
        self._cleanup = Cleanup(store, self.config.retention, self._lanes, store.sink, self._signal)
        self._renew_now = asyncio.Event()
        self._connecting = asyncio.Lock()

    @property
    def _health_problem(self) -> str | None:
        return self._outages.store_problem

    @property
    def _broker_problem(self) -> str | None:
        return self._outages.sink_problem

    def _stop_soon(self) -> None:
        self._wake_loops()

    async def _run(self, opened: asyncio.Event) -> None:
        try:
            problem = await self._connect_sink()  # a sink that is away does not delay the start
            connected = await self._until_stored(lambda: self._store.open(self._wake))
            if connected is None or await self._until_stored(self._lanes.renew) is None:
                return
            self._report_started(connected)
            opened.set()
            await self._relay(problem)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._close()

    async def _relay(self, sink_problem: str | None) -> None:
        """Run the loops and what they need; if one of these ends early, all end with its error."""
        quiet_s = (self.config.publish_timeout + MAX_OUTAGE_DELAY).total_seconds()
        needs: dict[str, Callable[[], Awaitable[None]]] = {
            "lease": self._keep_lease,
            "cleanup": self._cleanup.run,
            "sink": lambda: self._outages.watch_sink(sink_problem, self._connect_sink, quiet_s),
        }
        works = {f"loop-{loop.number}": loop.run for loop in self._loops}
        async with asyncio.TaskGroup() as tasks:

            def begin(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
                name = f"outrider-{name}"
                return tasks.create_task(refuse_own_cancellation(name, work), name=name)

            duties = [begin(name, duty) for name, duty in needs.items()]
            await asyncio.wait([begin(name, work) for name, work in works.items()])
            for duty in duties:
                duty.cancel()

    async def _connect_sink(self) -> str | None:
        """Returns why the sink cannot be reached now, if it cannot."""
        limit = self.config.publish_timeout.total_seconds()
        try:
            async with asyncio.timeout(limit), self._connecting:
                opening = open_publisher(self._publisher)
                await call_apart("the publisher", opening, self.config.patience_s)
        except BrokerUnavailable as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {limit:g} s"
        except OSError as error:  # a publisher that users wrote
            reason = failure_reason(error, self.config.error_detail)
            return f"the publisher raised {reason}"
        self._outages.was_connected = True
        return None

    async def _until_stored(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat until the database answers; returns None if the relay is stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                result = await call()
            except DatabaseUnavailable as error:
                await self._outages.store_is_down(error)
            else:
                self._outages.store_is_up()
                return result
        return None

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
        clock, period = asyncio.get_running_loop().time, self.config.lease.total_seconds() / 4
        while True:
            due = clock() + period
            with suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._renew_now.wait()
            self._renew_now.clear()
            if (late := clock() - due) > period:
                self._report_blocked(late)
            try:
                if await self._lanes.renew():
                    self._wake_loops()
                self._outages.store_is_up()
            except DatabaseUnavailable as error:
                await self._outages.store_is_down(error)
            for loop in self._loops:
                loop.extend(self._lanes.valid_until)

    async def _close(self) -> None:
        """Release everything, and report how many events are pending, if that can be told."""
        pending = None
        try:
            with suppress(OutriderError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._lanes.release_all()
                    pending = await self._store.count_pending(_MAX_COUNTED)
            await self._store.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    closing = close_publisher(self._publisher)
                    await call_apart("the publisher", closing, self.config.patience_s)
        finally:
            self._report_stopped(pending)

    def _report_blocked(self, seconds: float) -> None:
        name, sink = self.config.name, self._store.sink
        blocked = timedelta(seconds=seconds)
        self._signal(EventLoopBlocked(relay=name, sink=sink, blocked=blocked))

    def _report_stopped(self, pending: int | None) -> None:
        published = sum(loop.published for loop in self._loops)
        name, sink = self.config.name, self._store.sink
        self._signal(RelayStopped(relay=name, sink=sink, published=published, pending=pending))


def _publishes(given: object) -> bool:
    return hasattr(given, "publish") or hasattr(given, "publish_all")


def _check_publisher(publisher: object) -> None:
    name = type(publisher).__name__
    for method in ("publish", "publish_all", "open", "close"):
        call = getattr(publisher, method, None)
        if call is None:
            if method.startswith("publish"):
                raise ConfigurationError(f"{name} has no {method}: a publisher needs both methods")
            continue
        is_plain = inspect.isfunction(getattr(call, "__func__", call))
        if is_plain and not inspect.iscoroutinefunction(inspect.unwrap(call)):
            raise ConfigurationError(f"{name}.{method} cannot be awaited: write async def {method}")

"""An event bus in memory, for tests and single processes: nothing survives a restart."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING

from outrider.brokers.event_bus import envelope_of
from outrider.consumer.handler_runner import finish
from outrider.consumer.subscriptions import check_handler, check_pairs
from outrider.events.patterns import check_pattern, matches
from outrider.lifecycle import Openable
from outrider.outcomes import ACCEPTED, HELD_BACK, Outcome, Refused, raise_unless_accepted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from outrider.events.envelope import EventEnvelope
    from outrider.events.event import Event
    from outrider.ports import EventHandler


class InMemoryEventBus(Openable):
    """Publisher and subscriber in one. Handlers run in their order before `publish` returns.

    A type may be a pattern: `order.*` stands for all that begin so, `*` for every type.
    Every handler runs even if another one fails; the failures are raised together. Without
    `handler_timeout`, a handler that hangs blocks its own publish call, but no other call.
    """

    def __init__(
        self,
        handlers: Iterable[tuple[str, EventHandler]] = (),
        *,
        handler_timeout: timedelta | None = None,
    ) -> None:
        self._timeout = handler_timeout.total_seconds() if handler_timeout else None
        self._published: list[EventEnvelope] = []
        self._lock = Lock()
        self._subscriptions: tuple[tuple[str, EventHandler], ...] = ()
        self._cache: dict[str, tuple[EventHandler, ...]] = {}
        for event_type, handler in check_pairs(handlers):
            self.subscribe(event_type, handler)

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        check_handler(event_type, handler)
        # New objects each time: a delivery that is running, also in another thread, goes on with
        # those that it has.
        with self._lock:
            self._subscriptions = (*self._subscriptions, (check_pattern(event_type), handler))
            self._cache = {}

    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None:
        for event_type in event_types:
            self.subscribe(event_type, handler)

    def _handlers_of(self, event_type: str) -> tuple[EventHandler, ...]:
        """Each handler once, also if several of its patterns match."""
        cache = self._cache
        if event_type not in cache:
            handlers = (h for pattern, h in self._subscriptions if matches(pattern, event_type))
            cache[event_type] = tuple({id(handler): handler for handler in handlers}.values())
        return cache[event_type]

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to disconnect from."""

    def __str__(self) -> str:
        return "memory"

    async def publish(self, envelope: EventEnvelope | Event, /) -> None:
        raise_unless_accepted([await self._deliver(envelope_of(envelope))])

    async def publish_all(self, envelopes: Sequence[EventEnvelope | Event], /) -> None:
        outcomes: list[Outcome] = []
        stopped: set[tuple[str, str]] = set()
        for envelope in map(envelope_of, envelopes):
            aggregate = (envelope.aggregate_type, envelope.aggregate_id)
            if aggregate in stopped:
                outcomes.append(HELD_BACK)
                continue
            outcome = await self._deliver(envelope)
            if outcome is not ACCEPTED:
                stopped.add(aggregate)
            outcomes.append(outcome)
        raise_unless_accepted(outcomes)

    async def _deliver(self, envelope: EventEnvelope) -> Outcome:
        self._published.append(envelope)
        errors = [
            error
            for handler in self._handlers_of(envelope.event_type)
            if (error := await self._run(handler, envelope))
        ]
        if not errors:
            return ACCEPTED
        reason = f"{envelope.event_type} {envelope.event_id}: {len(errors)} handlers failed"
        return Refused(reason, ExceptionGroup(reason, errors))

    async def _run(self, handler: EventHandler, envelope: EventEnvelope) -> Exception | None:
        try:
            async with asyncio.timeout(self._timeout):
                await finish(handler.handle(envelope))
        except Exception as error:  # noqa: BLE001 - the other handlers run in any case
            error.add_note(f"raised by handler {handler.name}")
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # we are being cancelled, not the handler
            return RuntimeError(f"handler {handler.name} raised CancelledError")
        return None

    @property
    def published_events(self) -> list[EventEnvelope]:
        return list(self._published)

    @property
    def event_count(self) -> int:
        return len(self._published)

    def events_of_type(self, event_type: str) -> list[EventEnvelope]:
        return [e for e in self._published if e.event_type == event_type]

    def events_for_aggregate(self, aggregate_id: str) -> list[EventEnvelope]:
        return [e for e in self._published if e.aggregate_id == str(aggregate_id)]

    def has_event(self, event_type: str) -> bool:
        return any(e.event_type == event_type for e in self._published)

    def clear(self) -> None:
        """Delete the list of published events; the handlers stay."""
        self._published.clear()

"""In-process handlers as a sink: a relay calls functions of the same program."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.consumer.handler_runner import HandlerRunner
from outrider.consumer.subscriptions import NO_HANDLER, Subscriptions, unhandled_problems
from outrider.errors import ConfigurationError
from outrider.events.codec import EVENT_TYPES
from outrider.observability.logging import log_signals
from outrider.outcomes import ACCEPTED, HELD_BACK, Deferred, Outcome, Refused, raise_unless_accepted
from outrider.relay.current_batch import current_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outrider.consumer.handler_runner import Failure
    from outrider.consumer.scopes import ScopeFactory
    from outrider.consumer.subscriptions import Unhandled
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventHandler, Inbox
    from outrider.signals import OnSignal


class InProcessPublisher:
    """Calls every handler of an event, each in a scope of its own.

    Without `handlers`, these are the functions and classes that `@handles` registered. If a handler
    fails, the event is refused; a retry calls only the handlers that failed. Different aggregates
    are handled concurrently. With an inbox, handlers take effect once, also after a restart.

    An event that no handler subscribed to is accepted, and its type is told once; it is refused
    with `unhandled="refuse"`, and always if no class with its type has been imported either.
    """

    def __init__(
        self,
        handlers: Iterable[tuple[str, EventHandler]] | None = None,
        *,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        handler_timeout: timedelta | None = timedelta(seconds=10),
        concurrency: int = 16,
        unhandled: Unhandled = "accept",
        on_signal: OnSignal | None = log_signals,
    ) -> None:
        problems = unhandled_problems(unhandled)
        if concurrency < 1:
            problems.append("concurrency must be at least 1")
        if problems:
            raise ConfigurationError("in-process publisher: " + "; ".join(problems))
        self._concurrency, self._unhandled = concurrency, unhandled
        self._handlers = Subscriptions(handlers)
        self._runner = HandlerRunner(
            scope=scope, inbox=inbox, timeout=handler_timeout, on_signal=on_signal
        )

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        self._handlers.subscribe(event_type, handler)

    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None:
        self._handlers.subscribe_all(event_types, handler)

    async def open(self) -> None:
        self._handlers.open()
        self._runner.check(handler for _, handler in self._handlers)

    async def close(self) -> None:
        """Nothing to disconnect from."""

    def __str__(self) -> str:
        return "handlers of this process"

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        outcomes: list[Outcome] = [HELD_BACK] * len(envelopes)
        by_aggregate: dict[tuple[str, str], list[int]] = {}
        for index, envelope in enumerate(envelopes):
            aggregate = (envelope.aggregate_type, envelope.aggregate_id)
            by_aggregate.setdefault(aggregate, []).append(index)
        slots = asyncio.Semaphore(self._concurrency)
        async with asyncio.TaskGroup() as tasks:
            for indexes in by_aggregate.values():
                tasks.create_task(self._deliver_in_order(envelopes, indexes, outcomes, slots))
        # Only at the end: a cancelled call is repeated with all its events.
        for envelope, outcome in zip(envelopes, outcomes, strict=True):
            if outcome is ACCEPTED:
                self._runner.settled(envelope.event_id)
        raise_unless_accepted(outcomes)

    async def _deliver_in_order(
        self,
        envelopes: Sequence[EventEnvelope],
        indexes: Sequence[int],
        outcomes: list[Outcome],
        slots: asyncio.Semaphore,
    ) -> None:
        """Deliver the events of one aggregate, up to the first one that is not accepted."""
        for index in indexes:
            async with slots:
                outcomes[index] = await self._deliver(envelopes[index])
            if outcomes[index] is not ACCEPTED:
                return

    async def _deliver(self, envelope: EventEnvelope) -> Outcome:
        handlers = self._handlers.of(envelope.event_type)
        if not handlers:
            return self._settle_unhandled(envelope)
        batch = current_batch.get()
        failures = await self._runner.deliver(
            envelope,
            handlers,
            attempt=batch.attempts.get(envelope.event_id, 1),
            error_detail=batch.error_detail,
        )
        return _outcome(failures)

    def _settle_unhandled(self, envelope: EventEnvelope) -> Outcome:
        if envelope.event_type not in EVENT_TYPES:
            missing = "no class with its type has been imported"
            return Refused(f"{NO_HANDLER}, and {missing}: import the module that has them")
        if self._unhandled == "refuse":
            return Refused(NO_HANDLER)
        self._runner.tell_unhandled(envelope)
        return ACCEPTED


def _outcome(failures: Sequence[Failure]) -> Outcome:
    if not failures:
        return ACCEPTED
    reason = "; ".join(failure.reason for failure in failures)
    errors = [failure.error for failure in failures if isinstance(failure.error, Exception)]
    error = ExceptionGroup(reason, errors) if errors else None
    # Refuse an event only for its own fault, not because a database is unavailable.
    if all(failure.verdict == "wait" for failure in failures):
        return Deferred(reason, error)
    return Refused(reason, error)

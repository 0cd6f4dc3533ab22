"""Suspects: messages that a process may have died of are handled alone, and counted before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from outrider.consumer.handler_runner import Failure, HandlerMisbehaved
from outrider.errors import BrokerUnavailable
from outrider.signals import EventSuspected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outrider.consumer.consumer import ConsumerConfig
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import Delivery, EventSource


def suspected(consumer: str, envelope: EventEnvelope, crashes: int) -> EventSuspected:
    return EventSuspected(
        consumer=consumer,
        event_id=envelope.event_id,
        event_type=envelope.event_type,
        correlation_id=envelope.metadata.correlation_id,
        crashes=crashes,
    )


class Suspects:
    """Counts a crash against a suspect before it is handled, and takes it back afterwards.

    If this process dies meanwhile, the count stays with the broker, and the next process sees it.
    So one message that kills consumers is found, and only that one.
    """

    def __init__(
        self, source: EventSource, in_flight: asyncio.Semaphore, config: ConsumerConfig
    ) -> None:
        self._source, self._in_flight, self._config = source, in_flight, config
        self._one_at_a_time = asyncio.Lock()
        self.counted: set[Delivery] = set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """While nothing else is handled, so that a crash is counted against the right message."""
        # With the lock, as two that each hold some of the permits would wait for ever.
        async with self._one_at_a_time, AsyncExitStack() as permits:
            for _ in range(self._config.concurrency):
                await permits.enter_async_context(self._in_flight)
            yield

    async def problems(self, delivery: Delivery) -> list[Failure]:
        """Counts a crash against a suspect; a failure if too many were counted before.

        Raises BrokerUnavailable if it cannot be counted now: then it must not be handled.
        """
        await self._source.adjust_crash_count(delivery)
        self.counted.add(delivery)
        deaths = delivery.crash_count - 1
        if deaths < self._config.max_crashes:
            return []
        reason = f"{deaths} processes died while handling it"
        return [Failure("consumer", HandlerMisbehaved(reason), "never", reason)]

    async def take_back(self, delivery: Delivery) -> None:
        """This process lives, so whatever kept the message from being settled was no crash."""
        await self._source.adjust_crash_count(delivery, -1)
        self.counted.discard(delivery)

    async def take_all_back(self) -> None:
        """At the end; if the broker is away, the counts stay."""
        for delivery in tuple(self.counted):
            with suppress(BrokerUnavailable):
                await self.take_back(delivery)

"""Idempotent handling: skips events that a handler has processed, and deletes old marks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from outrider.consumer.handler_runner import finish
from outrider.consumer.scopes import skip
from outrider.errors import ConfigurationError, DatabaseUnavailable
from outrider.lifecycle import BackgroundService
from outrider.ports import Inbox, ProcessedEventStore
from outrider.relay.backoff import OutageBackoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventHandler


class CheckThenMark:
    """An inbox without transactions: checks before the handler runs, and marks after it.

    The handler takes effect twice after a crash between effect and mark, and when two deliveries
    of an event run at the same time. The transactional `SqlInbox` has neither problem.
    """

    def __init__(self, store: ProcessedEventStore) -> None:
        self._store = store

    @asynccontextmanager
    async def once(self, envelope: EventEnvelope, handler_name: str, /) -> AsyncIterator[bool]:
        first = not await self._store.contains(envelope.event_id, handler_name)
        yield first
        if first:
            await self._store.mark(envelope.event_id, handler_name)


class IdempotentHandler:
    """Skips events that its handler has processed; a failed event is not marked, but retried."""

    def __init__(self, handler: EventHandler, inbox: Inbox | ProcessedEventStore) -> None:
        self.name = handler.name
        self._handler = handler
        self._inbox = inbox if isinstance(inbox, Inbox) else CheckThenMark(inbox)

    async def handle(self, envelope: EventEnvelope, /) -> None:
        async with self._inbox.once(envelope, self.name) as first:
            if first:
                await finish(self._handler.handle(envelope))
            else:
                skip(self.name)

    def __repr__(self) -> str:
        return f"<idempotent {self._handler!r}>"


class InboxCleanup(BackgroundService):
    """Deletes the marks of events that can no longer be delivered again.

    An outage of the database only delays this. `stop` does not wait for a deletion that runs.
    """

    _grace = timedelta(0)

    def __init__(
        self,
        store: ProcessedEventStore,
        *,
        retention: timedelta = timedelta(days=30),
        longest_redelivery: timedelta = timedelta(days=14),
        every: timedelta = timedelta(hours=1),
    ) -> None:
        """`longest_redelivery` is a sum of two times: how long the outbox retries events and keeps
        them for a replay, and how long the broker keeps messages."""
        super().__init__()
        problems = []
        if retention <= longest_redelivery:
            problems.append(
                f"retention ({retention}) must be longer than the longest redelivery "
                f"({longest_redelivery}), else an event that comes late takes effect again"
            )
        if every <= timedelta(0):
            problems.append("every must be above 0")
        if problems:
            raise ConfigurationError("inbox: " + "; ".join(problems))
        self._store, self._retention, self._every = store, retention, every

    async def _run(self, opened: asyncio.Event) -> None:
        opened.set()
        backoff = OutageBackoff()
        while True:
            try:
                await self.delete_old_marks()
                backoff.reset()
                wait = self._every
            except DatabaseUnavailable:
                wait = backoff.next_delay()
            await asyncio.sleep(wait.total_seconds())

    async def delete_old_marks(self) -> int:
        """Delete once, now; returns how many marks were deleted."""
        return await self._store.delete_before(datetime.now(UTC) - self._retention)


class MemoryProcessedEvents:
    """Marks in memory, for tests and single processes; they are lost when the process ends."""

    def __init__(self) -> None:
        self._marks: dict[tuple[UUID, str], datetime] = {}

    async def contains(self, event_id: UUID, handler_name: str, /) -> bool:
        return (event_id, handler_name) in self._marks

    async def mark(self, event_id: UUID, handler_name: str, /) -> None:
        self._marks[event_id, handler_name] = datetime.now(UTC)

    async def delete_before(self, moment: datetime, /) -> int:
        old = [key for key, marked_at in self._marks.items() if marked_at < moment]
        for key in old:
            del self._marks[key]
        return len(old)

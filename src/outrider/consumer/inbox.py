"""Handling once: a wrapper around a handler, over any memory of what was handled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

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
    """An inbox over a store that knows no transactions, for handlers without one.

    Its holes: a crash between effect and mark, and two deliveries at the same moment, make the
    handler take effect twice. A transactional inbox, `SqlInbox`, has neither.
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
    """Skips what its handler has dealt with; what failed is not marked, and comes again."""

    def __init__(self, handler: EventHandler, inbox: Inbox | ProcessedEventStore) -> None:
        self.name = handler.name
        self._handler = handler
        self._inbox = inbox if isinstance(inbox, Inbox) else CheckThenMark(inbox)

    async def handle(self, envelope: EventEnvelope, /) -> None:
        async with self._inbox.once(envelope, self.name) as first:
            if first:
                await self._handler.handle(envelope)
            else:
                skip(self.name)

    def __repr__(self) -> str:
        return f"<idempotent {self._handler!r}>"


class InboxCleanup(BackgroundService):
    """Forgets marks of handled events once nothing can bring those events again.

    A database that is away only delays it. Stopping interrupts it: what is left waits.
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
        """`longest_redelivery` is the time over which the outbox retries and keeps what a person
        may send again, and that for which the broker keeps messages, together."""
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
        pause = OutageBackoff()
        while True:
            try:
                await self.clean()
                pause.reset()
                wait = self._every
            except DatabaseUnavailable:
                wait = pause.next_delay()
            await asyncio.sleep(wait.total_seconds())

    async def clean(self) -> int:
        """Once, now; how many marks were forgotten."""
        return await self._store.delete_before(datetime.now(UTC) - self._retention)


class MemoryProcessedEvents:
    """For tests and single processes; it forgets everything at the end of the process."""

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

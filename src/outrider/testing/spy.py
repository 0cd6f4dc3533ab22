"""For an application's own tests: what was recorded, and a delivery that needs no broker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar, cast

from outrider.admin.filters import RETRYING, EventFilter
from outrider.admin.inspector import OutboxInspector
from outrider.ports import DEFAULT_SINK
from outrider.recording.outbox import Outbox
from outrider.recording.repository import OutboxRepository
from outrider.relay.config import RelayConfig
from outrider.relay.relay import OutboxRelay
from outrider.relay.retry import ExponentialRetry
from outrider.signals import BatchPublished, Signal
from outrider.store.schema.tables import PENDING
from outrider.store.sql_store import SqlOutboxStore

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventPublisher
    from outrider.store.schema.tables import OutboxTables

T = TypeVar("T")
_MOST: Final = 10_000
# What is refused waits for longer than any test.
_LATER: Final = ExponentialRetry(first=timedelta(hours=1), cap=timedelta(hours=1))


class OutboxSpy:
    """Looks at the outbox of an application, and empties it on demand."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        self._engine, self._tables = engine, tables
        self._inspector = OutboxInspector(engine, tables)

    async def waiting(self) -> list[EventEnvelope]:
        """All that was recorded and not delivered yet, oldest first."""
        repository = OutboxRepository(self._engine, Outbox(self._tables))
        return await repository.fetch_unpublished(_MOST)

    async def recorded(self, event_class: type[T]) -> list[T]:
        """The waiting events of one class, as they were recorded."""
        wanted = getattr(event_class, "event_type", None)
        found = [e.to_event() for e in await self.waiting() if e.event_type == wanted]
        return cast("list[T]", found)

    async def deliver(
        self,
        publisher: EventPublisher,
        *,
        sink: str = DEFAULT_SINK,
        within: timedelta = timedelta(seconds=30),
    ) -> int:
        """Bring all that waits to a publisher, by a real relay; how many events it accepted.

        What handlers record meanwhile is brought too; what the publisher refuses is left.
        """
        accepted = 0

        def watch(signal: Signal) -> None:
            nonlocal accepted
            if isinstance(signal, BatchPublished):
                accepted += len(signal.accepted)

        config = RelayConfig(retry=_LATER, poll_interval=timedelta(milliseconds=10), retention=None)
        store = SqlOutboxStore(self._engine, self._tables, sink=sink)
        async with asyncio.timeout(within.total_seconds()):
            async with OutboxRelay(store, publisher, config, on_signal=watch):
                while await self._left(sink):  # noqa: ASYNC110 - the database tells nobody
                    await asyncio.sleep(0.01)
        return accepted

    async def _left(self, sink: str) -> int:
        pending = await self._inspector.count(EventFilter(sink=sink, status=PENDING))
        return pending - await self._inspector.count(EventFilter(sink=sink, status=RETRYING))

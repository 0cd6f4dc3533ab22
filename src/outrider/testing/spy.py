"""For an application's tests: shows what was recorded, and delivers it without a broker."""

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
_MAX_EVENTS: Final = 10_000
# A refused event is not tried again: this delay is longer than any test.
_NO_RETRY_IN_TIME: Final = ExponentialRetry(first=timedelta(hours=1), cap=timedelta(hours=1))


class OutboxSpy:
    """Shows the pending events of an application's outbox, and delivers them on demand."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        self._engine, self._tables = engine, tables
        self._inspector = OutboxInspector(engine, tables)

    async def waiting(self) -> list[EventEnvelope]:
        """All pending events, oldest first."""
        repository = OutboxRepository(self._engine, Outbox(self._tables))
        return await repository.fetch_unpublished(_MAX_EVENTS)

    async def recorded(self, event_class: type[T]) -> list[T]:
        """The pending events of one class, as they were recorded."""
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
        """Deliver all pending events with a real relay; return how many the publisher accepted.

        Events that handlers record meanwhile are delivered, too. Refused events stay pending.
        """
        accepted = 0

        def watch(signal: Signal) -> None:
            nonlocal accepted
            if isinstance(signal, BatchPublished):
                accepted += len(signal.accepted)

        config = RelayConfig(
            retry=_NO_RETRY_IN_TIME, poll_interval=timedelta(milliseconds=10), retention=None
        )
        store = SqlOutboxStore(self._engine, self._tables, sink=sink)
        async with asyncio.timeout(within.total_seconds()):
            async with OutboxRelay(store, publisher, config, on_signal=watch):
                while await self._count_due(sink):  # noqa: ASYNC110 - the database sends no notice
                    await asyncio.sleep(0.01)
        return accepted

    async def _count_due(self, sink: str) -> int:
        pending = await self._inspector.count(EventFilter(sink=sink, status=PENDING))
        return pending - await self._inspector.count(EventFilter(sink=sink, status=RETRYING))

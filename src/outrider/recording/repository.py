"""OutboxRepository: store, fetch, mark and delete events without a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
from sqlalchemy import Text, cast, delete, insert, select, update

from outrider.events.envelope import EventEnvelope, EventMetadata
from outrider.ports import DEFAULT_SINK
from outrider.recording.outbox import Outbox
from outrider.store.engines import check_engine
from outrider.store.schema.tables import PENDING, PUBLISHED, DatabaseNow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession


@runtime_checkable
class EventOutboxRepository(Protocol):
    """The port of an outbox that is published by hand: a test may put its own in place.

    `store` uses the transaction of the caller, or one of its own. What was marked as published is
    never fetched again, and is deleted when its retention is over.
    """

    async def store(
        self,
        envelopes: Sequence[EventEnvelope],
        transaction: AsyncSession | AsyncConnection | None = None,
    ) -> None: ...
    async def fetch_unpublished(self, limit: int) -> Sequence[EventEnvelope]: ...
    async def mark_published(self, event_id: UUID) -> bool: ...
    async def delete_published_before(self, moment: datetime) -> int: ...


class OutboxRepository:
    """For tools, tests and self-written publishing loops. Prefer a relay for everything else.

    `store` writes rows for all sinks that the outbox's routes name; the other methods read and
    change the rows of one sink. There are no leases: two callers that fetch at the same time get
    the same events.
    """

    def __init__(
        self, engine: AsyncEngine, outbox: Outbox | None = None, *, sink: str = DEFAULT_SINK
    ) -> None:
        check_engine(engine, "OutboxRepository")
        self._engine = engine
        self._outbox = outbox or Outbox()
        self._table = self._outbox.tables.outbox
        self._sink, self._of_sink = sink, self._table.c.sink == sink

    async def store(
        self,
        envelopes: Sequence[EventEnvelope],
        transaction: AsyncSession | AsyncConnection | None = None,
    ) -> None:
        """Store in the given transaction, which the caller commits, or in a new one."""
        if transaction is not None:
            self._outbox.record(transaction, *envelopes)
            return
        async with self._engine.begin() as connection:
            self._outbox.record(connection, *envelopes)

    async def fetch_unpublished(self, limit: int) -> list[EventEnvelope]:
        """The oldest pending events; the events of one aggregate are in order."""
        c = self._table.c
        query = (
            select(
                c.id,
                c.event_type,
                c.event_version,
                c.aggregate_type,
                c.aggregate_id,
                c.occurred_at,
                cast(c.payload, Text).label("data"),
                cast(c.metadata, Text).label("meta"),
            )
            .where(self._of_sink, c.status == PENDING)
            .order_by(c.position)
            .limit(limit)
        )
        async with self._engine.connect() as connection:
            return [_envelope(row) for row in (await connection.execute(query)).all()]

    async def mark_published(self, event_id: UUID) -> bool:
        """Mark an event as published; returns whether it was pending.

        Like a relay, it gives the event the next delivery number, by which cleanups and the live
        stream find it.
        """
        c = self._table.c
        async with self._engine.connect() as connection:
            change = (
                update(self._table)
                .where(self._of_sink, c.id == event_id, c.status == PENDING)
                .values(
                    status=PUBLISHED,
                    published_at=DatabaseNow(),
                    next_retry_at=None,
                    delivery_number=await self._next_delivery_number(connection),
                )
            )
            was_pending = (await connection.execute(change)).rowcount == 1
            await (connection.commit() if was_pending else connection.rollback())
        return was_pending

    async def _next_delivery_number(self, connection: AsyncConnection) -> int:
        sinks = self._outbox.tables.sinks
        number = sinks.c.last_delivery_number + 1
        count = update(sinks).where(sinks.c.sink == self._sink)
        count = count.values(last_delivery_number=number)
        if (await connection.execute(count)).rowcount == 0:  # no relay has served this sink yet
            first = insert(sinks).values(sink=self._sink, last_delivery_number=1)
            await connection.execute(first)
        found = select(sinks.c.last_delivery_number).where(sinks.c.sink == self._sink)
        return int((await connection.execute(found)).scalar_one())

    async def delete_published_before(self, moment: datetime) -> int:
        """Delete published events only; pending and failed events stay, whatever their age."""
        c = self._table.c
        old = delete(self._table).where(
            self._of_sink, c.status == PUBLISHED, c.published_at < moment
        )
        async with self._engine.begin() as connection:
            return (await connection.execute(old)).rowcount


def _envelope(row: Row[tuple[object, ...]]) -> EventEnvelope:
    return EventEnvelope(
        event_id=row.id,
        event_type=row.event_type,
        event_version=row.event_version,
        aggregate_type=row.aggregate_type,
        aggregate_id=row.aggregate_id,
        occurred_at=row.occurred_at,
        data=row.data.encode(),
        metadata=msgspec.json.decode(row.meta, type=EventMetadata),
    )

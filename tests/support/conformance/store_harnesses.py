"""The stores of this library, as the conformance suite sees them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outrider import EventEnvelope, Outbox, SqlOutboxStore
from outrider.ports import DEFAULT_SINK, RelayStore
from outrider.testing.memory_store import MemoryOutboxStore
from outrider.testing.store_suite import StoredRow, StoreHarness


class SqlHarness(StoreHarness):
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def store(self, sink: str = DEFAULT_SINK, *, park: bool = False) -> RelayStore:
        return SqlOutboxStore(self._engine, sink=sink, park=park)

    async def record(
        self, events: Sequence[EventEnvelope], sinks: Sequence[str] = (DEFAULT_SINK,)
    ) -> None:
        async with AsyncSession(self._engine) as session, session.begin():
            Outbox(routes={"*": sinks}).record(session, *events)

    async def rows(self, sink: str = DEFAULT_SINK) -> list[StoredRow]:
        c = Outbox().tables.outbox.c
        counts = c.retry_count, c.crash_count
        shown = c.id, c.status, *counts, c.last_error, c.delivery_number, c.attempts
        query = select(*shown).where(c.sink == sink).order_by(c.position)
        async with self._engine.connect() as connection:
            return [
                StoredRow(
                    event_id=row.id,
                    status=row.status,
                    retry_count=row.retry_count,
                    crash_count=row.crash_count,
                    last_error=row.last_error,
                    delivery_number=row.delivery_number,
                    attempts=row.attempts,
                )
                for row in await connection.execute(query)
            ]

    async def expire(self) -> None:
        async with self._engine.begin() as connection:
            for name in ("outbox_lanes", "outbox_relays"):
                past = f"UPDATE {name} SET expires_at = '2020-01-01 00:00:00+00'"  # noqa: S608
                await connection.execute(text(past))


class MemoryHarness(StoreHarness):
    """`kind` is for stores with a fault that the suite is to find."""

    def __init__(self, kind: type[MemoryOutboxStore] = MemoryOutboxStore) -> None:
        self._ahead = timedelta(0)
        self._outbox = kind(clock=lambda: datetime.now(UTC) + self._ahead)

    def store(self, sink: str = DEFAULT_SINK, *, park: bool = False) -> RelayStore:
        return self._outbox.of_sink(sink, park=park)

    async def record(
        self, events: Sequence[EventEnvelope], sinks: Sequence[str] = (DEFAULT_SINK,)
    ) -> None:
        self._outbox.record(*events, sinks=sinks)

    async def rows(self, sink: str = DEFAULT_SINK) -> list[StoredRow]:
        return [
            StoredRow(
                event_id=row.event.id,
                status=row.status,
                retry_count=row.retry_count,
                crash_count=row.crash_count,
                last_error=row.last_error,
                delivery_number=row.delivery_number,
                attempts=row.attempts,
            )
            for row in self._outbox.of_sink(sink).rows
        ]

    async def expire(self) -> None:
        self._ahead += timedelta(minutes=1)

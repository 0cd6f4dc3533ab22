"""Delivered events: reads the events that a sink accepted, by delivery number."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.dialects.sqlite import aiosqlite

from outrider.errors import ConfigurationError
from outrider.events.codec import UNREADABLE
from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.ports import DEFAULT_SINK
from outrider.store.engines import describe
from outrider.store.postgres.notifications import NotificationListener
from outrider.store.schema.tables import OutboxTables
from outrider.store.sqlite.connection import SqliteConnection, moment
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Dialect
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.store.schema.names import OutboxNames

# Both statements use the partial index on (sink, delivery_number).
_AFTER: Final = """
SELECT delivery_number, id, event_type, event_version, aggregate_type, aggregate_id, occurred_at,
    CAST(payload AS text), CAST(metadata AS text)
FROM {outbox} WHERE sink = {sink} AND delivery_number > {delivery_number}
ORDER BY delivery_number LIMIT {limit}
"""
_BOUNDS: Final = """
SELECT coalesce((
    SELECT delivery_number FROM {outbox} WHERE sink = {sink} AND delivery_number IS NOT NULL
    ORDER BY delivery_number LIMIT 1
), last_delivery_number + 1), last_delivery_number
FROM {sinks} WHERE sink = {sink}
"""
_NO_BOUNDS: Final = (1, 0)

_decode_metadata: Final = msgspec.json.Decoder(EventMetadata).decode


@dataclass(frozen=True, slots=True)
class DeliveredEvent:
    """An event with the delivery number that it got when it was settled."""

    delivery_number: int
    envelope: EventEnvelope


class DeliveredEvents(Protocol):
    """The events that a sink accepted, for readers with a cursor.

    A delivery number becomes visible only when all lower numbers are visible. So a reader that
    asks for the events after the last number it saw gets each event once, even if an earlier
    transaction commits late.
    """

    sink: str

    async def open(self, wake: Callable[[str], None], /) -> str:
        """Connect; returns a description of the database without secrets.

        From now on `wake` is called when there may be new events; its argument is only a hint.
        """
        ...

    async def after(self, delivery_number: int, limit: int, /) -> list[DeliveredEvent]:
        """The next events with a higher number, in order."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """The oldest stored number and the newest assigned number.

        If no event is stored, the oldest is the number that will be assigned next.
        """
        ...

    async def close(self) -> None: ...


def SqlDeliveredEvents(  # noqa: N802 - named like the classes it creates
    engine: AsyncEngine,
    tables: OutboxTables | None = None,
    *,
    sink: str = DEFAULT_SINK,
    timeout: timedelta = timedelta(seconds=10),
) -> DeliveredEvents:
    """The delivered events of one sink, from the outbox in this database.

    Give it the `sink` that the relay's store has; both have the same default.

    The engine must connect to the database in which relays settle. A read replica may lag behind,
    and show fewer events than clients have received.
    """
    names = (tables or OutboxTables()).names
    if engine.dialect.name == "postgresql":
        return PostgresDeliveredEvents(engine, names, sink, timeout)
    if engine.dialect.name == "sqlite":
        return SqliteDeliveredEvents(engine, names, sink, timeout)
    raise ConfigurationError(f"no outbox for {engine.dialect.name}; there is PostgreSQL and SQLite")


class PostgresDeliveredEvents:
    """Implements DeliveredEvents with its own connections; woken up by relays of any process."""

    def __init__(
        self, engine: AsyncEngine, names: OutboxNames, sink: str, timeout: timedelta
    ) -> None:
        from outrider.store.postgres.connections import ConnectionPool

        self.sink = sink
        dialect: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]
        values = {"sink": "$1", "delivery_number": "$2", "limit": "$3"}
        self._after, self._bounds = _statements(names, dialect, values)
        self._pool = ConnectionPool(engine, timeout, names)
        self._listener = NotificationListener(self._pool, names.delivered_channel, self._on_notify)
        self._description = describe(engine.url)
        self._wake: Callable[[str], None] = lambda _source: None

    async def open(self, wake: Callable[[str], None], /) -> str:
        await self.bounds()
        self._wake = wake
        notified = await self._listener.open()
        mode = "notified" if notified else "polling only: no notification arrives"
        return f"{self._description} ({mode})"

    async def after(self, delivery_number: int, limit: int, /) -> list[DeliveredEvent]:
        parameters = (self.sink, delivery_number, limit)
        rows = await self._pool.run(lambda connection: connection.fetch(self._after, *parameters))
        return [_event_of(*row) for row in rows]

    async def bounds(self) -> tuple[int, int]:
        row = await self._pool.run(lambda connection: connection.fetchrow(self._bounds, self.sink))
        return (row[0], row[1]) if row else _NO_BOUNDS

    async def close(self) -> None:
        await self._listener.close()
        await self._pool.close()

    def _on_notify(self, _payload: str) -> None:
        self._wake("notify")


class SqliteDeliveredEvents:
    """Implements DeliveredEvents; woken up by relays of the same process, polls for others."""

    def __init__(
        self, engine: AsyncEngine, names: OutboxNames, sink: str, timeout: timedelta
    ) -> None:
        self.sink = sink
        values = {name: f":{name}" for name in ("sink", "delivery_number", "limit")}
        self._after, self._bounds = _statements(names, aiosqlite.dialect(), values)
        self._connection = SqliteConnection(engine, timeout, names)
        self._notifier = notifier_for(engine.sync_engine, names.delivered_channel)
        self._stop_listening: Callable[[], None] = lambda: None

    async def open(self, wake: Callable[[str], None], /) -> str:
        await self.bounds()
        loop = asyncio.get_running_loop()
        self._stop_listening = self._notifier.subscribe(
            lambda payload: loop.call_soon_threadsafe(wake, payload)
        )
        return f"sqlite:///{self._connection.file}"

    async def after(self, delivery_number: int, limit: int, /) -> list[DeliveredEvent]:
        parameters = {"sink": self.sink, "delivery_number": delivery_number, "limit": limit}
        rows = await self._connection.read(self._after, parameters)
        return [_event_of(r[0], UUID(r[1]), *r[2:6], moment(r[6]), *r[7:]) for r in rows]

    async def bounds(self) -> tuple[int, int]:
        rows = await self._connection.read(self._bounds, {"sink": self.sink})
        return rows[0] if rows else _NO_BOUNDS

    async def close(self) -> None:
        self._stop_listening()
        await self._connection.close()


def _statements(names: OutboxNames, dialect: Dialect, values: dict[str, str]) -> tuple[str, str]:
    tables = {table: names.quoted(table, dialect) for table in ("outbox", "sinks")}
    return _AFTER.format(**tables, **values), _BOUNDS.format(**tables, **values)


def _event_of(delivery_number: int, *columns: Any) -> DeliveredEvent:
    *names, occurred_at, data, metadata_text = columns
    event_id, event_type, event_version, aggregate_type, aggregate_id = names
    try:
        metadata = NO_METADATA if metadata_text == "{}" else _decode_metadata(metadata_text)
    except UNREADABLE:  # damaged after it was published: a relay publishes no such row
        metadata = NO_METADATA
    envelope = EventEnvelope.stored(
        event_id,
        event_type,
        event_version,
        aggregate_type,
        aggregate_id,
        occurred_at,
        data.encode(),
        metadata,
    )
    return DeliveredEvent(delivery_number, envelope)

"""Reading what a sink has accepted, by delivery number, for live streams and other followers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.dialects.sqlite import aiosqlite

from outrider.codec import UNREADABLE
from outrider.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.errors import ConfigurationError
from outrider.ports import DeliveredEvent
from outrider.sql.listening import Ears
from outrider.sql.sqlite_link import SqliteLink, moment
from outrider.sql.tables import OutboxTables
from outrider.sql.wakeup import waker_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Dialect
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.ports import DeliveredEvents
    from outrider.sql.names import OutboxNames

_SUFFIX: Final = "_delivered"
_LONGEST_CHANNEL: Final = 63

# Both walk the index over (sink, delivery), whose condition is that there is a delivery.
_AFTER: Final = """
SELECT delivery, id, event_type, event_version, aggregate_type, aggregate_id, occurred_at,
    CAST(payload AS text), CAST(metadata AS text)
FROM {outbox} WHERE sink = {sink} AND delivery > {delivery} ORDER BY delivery LIMIT {limit}
"""
_BOUNDS: Final = """
SELECT coalesce((
    SELECT delivery FROM {outbox} WHERE sink = {sink} AND delivery IS NOT NULL
    ORDER BY delivery LIMIT 1
), delivered + 1), delivered
FROM {sinks} WHERE sink = {sink}
"""
_NOTHING_YET: Final = (1, 0)

_decode_metadata: Final = msgspec.json.Decoder(EventMetadata).decode


def delivered_channel(names: OutboxNames) -> str:
    """What readers listen on. Names that are cut off here only wake each other up in vain."""
    return names.channel[: _LONGEST_CHANNEL - len(_SUFFIX)] + _SUFFIX


def SqlDelivered(  # noqa: N802 - reads as the class that it stands for
    engine: AsyncEngine,
    tables: OutboxTables | None = None,
    *,
    sink: str = "stream",
    deadline: float = 10.0,
) -> DeliveredEvents:
    """What this database's outbox has delivered to a sink.

    The engine must lead to where relays settle: a replica that lags behind shows less than
    clients have seen.
    """
    names = (tables or OutboxTables()).names
    if engine.dialect.name == "postgresql":
        return PostgresDelivered(engine, names, sink, deadline)
    if engine.dialect.name == "sqlite":
        return SqliteDelivered(engine, names, sink, deadline)
    raise ConfigurationError(f"no outbox for {engine.dialect.name}; there is PostgreSQL and SQLite")


class PostgresDelivered:
    """Fits DeliveredEvents, on connections of its own; woken up by relays anywhere."""

    def __init__(self, engine: AsyncEngine, names: OutboxNames, sink: str, deadline: float) -> None:
        from outrider.sql.links import Links

        self.sink = sink
        dialect: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]
        values = {"sink": "$1", "delivery": "$2", "limit": "$3"}
        self._after, self._bounds = _statements(names, dialect, values)
        self._links = Links(engine, deadline)
        self._ears = Ears(self._links, delivered_channel(names), self._hear)
        self._where = engine.url.render_as_string(hide_password=True)
        self._wake: Callable[[str], None] = lambda _source: None

    async def open(self, wake: Callable[[str], None], /) -> str:
        await self.bounds()
        self._wake = wake
        hears = await self._ears.open()
        return f"{self._where} ({'notified' if hears else 'polling only: no notification arrives'})"

    async def after(self, delivery: int, limit: int, /) -> list[DeliveredEvent]:
        asked = (self.sink, delivery, limit)
        rows = await self._links.run(lambda link: link.fetch(self._after, *asked))
        return [_event_of(*row) for row in rows]

    async def bounds(self) -> tuple[int, int]:
        row = await self._links.run(lambda link: link.fetchrow(self._bounds, self.sink))
        return (row[0], row[1]) if row else _NOTHING_YET

    async def close(self) -> None:
        await self._ears.close()
        await self._links.close()

    def _hear(self, _word: str) -> None:
        self._wake("notify")


class SqliteDelivered:
    """Fits DeliveredEvents; woken up by relays of the same process, and polling for others."""

    def __init__(self, engine: AsyncEngine, names: OutboxNames, sink: str, deadline: float) -> None:
        self.sink = sink
        values = {name: f":{name}" for name in ("sink", "delivery", "limit")}
        self._after, self._bounds = _statements(names, aiosqlite.dialect(), values)
        self._link = SqliteLink(engine, deadline)
        self._waker = waker_of(engine.sync_engine, delivered_channel(names))
        self._stop_listening: Callable[[], None] = lambda: None

    async def open(self, wake: Callable[[str], None], /) -> str:
        await self.bounds()
        loop = asyncio.get_running_loop()
        self._stop_listening = self._waker.subscribe(
            lambda word: loop.call_soon_threadsafe(wake, word)
        )
        return f"sqlite:///{self._link.file}"

    async def after(self, delivery: int, limit: int, /) -> list[DeliveredEvent]:
        asked = {"sink": self.sink, "delivery": delivery, "limit": limit}
        rows = await self._link.read(self._after, asked)
        return [_event_of(r[0], UUID(r[1]), *r[2:6], moment(r[6]), *r[7:]) for r in rows]

    async def bounds(self) -> tuple[int, int]:
        rows = await self._link.read(self._bounds, {"sink": self.sink})
        return rows[0] if rows else _NOTHING_YET

    async def close(self) -> None:
        self._stop_listening()
        await self._link.close()


def _statements(names: OutboxNames, dialect: Dialect, values: dict[str, str]) -> tuple[str, str]:
    tables = {table: names.quoted(table, dialect) for table in ("outbox", "sinks")}
    return _AFTER.format(**tables, **values), _BOUNDS.format(**tables, **values)


def _event_of(delivery: int, *columns: Any) -> DeliveredEvent:
    event_id, kind, version, aggregate_type, aggregate_id, occurred_at, data, metadata = columns
    try:
        known = NO_METADATA if metadata == "{}" else _decode_metadata(metadata)
    except UNREADABLE:  # a relay lets no such row pass; it was damaged later
        known = NO_METADATA
    envelope = EventEnvelope.stored(
        event_id, kind, version, aggregate_type, aggregate_id, occurred_at, data.encode(), known
    )
    return DeliveredEvent(delivery, envelope)

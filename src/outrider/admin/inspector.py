"""The inspector: reads sinks, relays, lanes, lists of events and the history of one event.

Every query takes bounded time, however large the tables are. Counts stop at a limit and become
estimates, lists use keyset pagination by position, and a search without an index reads a limited
range of positions and reports where it stopped. No index exists for the inspector alone.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select, text, union_all

from outrider.admin.backlog import MAX_COUNTED, MAX_VISITED, Backlog
from outrider.admin.filters import PARKED, RETRYING, EventFilter
from outrider.admin.summaries import (
    EventSummary,
    FailureGroup,
    LaneSummary,
    Page,
    ParkedAggregate,
    RefusedAttempt,
    RelaySummary,
    SinkSummary,
)
from outrider.store.engines import check_engine
from outrider.store.schema.tables import FAILED, PENDING, OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from sqlalchemy import FromClause, Row, Select
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from outrider.events.strict_json import JsonObject

SEARCH_WINDOW: Final = 100_000
"""How many positions a search without an index covers."""
MAX_PAGE: Final = 200
_MAX_SURVEYED: Final = 200_000
_STATEMENT_TIMEOUT: Final = "5s"


class OutboxInspector:
    """Only reads. On PostgreSQL, a query that takes longer than five seconds is cancelled."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        check_engine(engine, "OutboxInspector")
        self._engine = engine
        self._tables = tables or OutboxTables()
        self._outbox = self._tables.outbox
        self._backlog = Backlog(self._tables)

    async def sinks(self) -> list[SinkSummary]:
        async with self._connect() as db:
            return await self._backlog.sinks(db)

    async def sink_names(self) -> list[str]:
        async with self._connect() as db:
            return sorted(await self._backlog.delivery_numbers(db))

    async def relays(self) -> list[RelaySummary]:
        c, lanes = self._tables.relays.c, self._tables.lanes.c
        owned = select(func.count()).where(lanes.owner == c.id).scalar_subquery().label("lanes")
        now = datetime.now(UTC)
        async with self._connect() as db:
            rows = await db.execute(select(c.name, c.sink, owned, c.started_at, c.expires_at))
            return [RelaySummary(**row._mapping, alive=row.expires_at > now) for row in rows]

    async def lanes(self) -> list[LaneSummary]:
        """Every lane that was ever leased, with its present owner."""
        relays, lanes = self._tables.relays, self._tables.lanes
        is_owner = (lanes.c.owner == relays.c.id) & (lanes.c.expires_at > datetime.now(UTC))
        every = select(lanes.c.sink, lanes.c.lane, relays.c.name.label("relay"))
        every = every.select_from(lanes.outerjoin(relays, is_owner))
        async with self._connect() as db:
            rows = await db.execute(every.order_by(lanes.c.sink, lanes.c.lane))
            return [LaneSummary(**row._mapping) for row in rows]

    async def events(
        self, wanted: EventFilter, *, before: int | None = None, limit: int = 50
    ) -> Page:
        """A page of events, newest first, with positions below `before`."""
        limit = max(1, min(limit, MAX_PAGE))
        async with self._connect() as db:
            top = before if before is not None else await self._above_newest(db)
            table, top, bottom = await self._search_range(db, wanted, top)
            c = table.c
            page = self._select(table).where(
                *wanted.conditions(table), c.position < top, c.position >= bottom
            )
            rows = (await db.execute(page.order_by(c.position.desc()).limit(limit))).all()
        events = [_summary(row) for row in rows]
        if len(events) == limit:
            return Page(events=events, older=events[-1].position)
        return Page(events=events, older=bottom or None)

    async def count(self, wanted: EventFilter, limit: int = MAX_COUNTED) -> int:
        """How many events match, counted up to `limit`."""
        async with self._connect() as db:
            return await self._backlog.count(db, *wanted.conditions(self._outbox), limit=limit)

    async def event(self, event_id: UUID) -> list[EventSummary]:
        """The event at each of its sinks."""
        async with self._connect() as db:
            rows = await db.execute(self._select().where(self._outbox.c.id == event_id))
            return [_summary(row) for row in rows.all()]

    async def attempts(self, event_id: UUID) -> list[RefusedAttempt]:
        """The last refused attempts at each of its sinks, with time and reason; oldest first."""
        c = self._outbox.c
        async with self._connect() as db:
            rows = await db.execute(select(c.sink, c.attempts).where(c.id == event_id))
            return [
                RefusedAttempt(**{**kept, "sink": sink, "at": datetime.fromisoformat(kept["at"])})
                for sink, attempts in rows
                for kept in attempts or ()
            ]

    async def payload(self, event_id: UUID) -> JsonObject | None:
        return await self._json(event_id, "payload")

    async def metadata(self, event_id: UUID) -> JsonObject | None:
        return await self._json(event_id, "metadata")

    async def _json(self, event_id: UUID, column: str) -> JsonObject | None:
        c = self._outbox.c
        async with self._connect() as db:
            query = select(c[column]).where(c.id == event_id).limit(1)
            value: JsonObject | None = await db.scalar(query)
            return value

    async def handled_by(self, event_id: UUID) -> list[tuple[str, datetime]]:
        """The handlers that have processed this event, each with the time."""
        c = self._tables.processed.c
        marks = select(c.handler_name, c.processed_at).where(c.event_id == event_id)
        async with self._connect() as db:
            rows = await db.execute(marks.order_by(c.processed_at).limit(MAX_PAGE))
            return [(row[0], row[1]) for row in rows]

    async def neighbours(self, event: EventSummary, each_way: int = 5) -> list[EventSummary]:
        """The events of the same aggregate just before and after, within the search window."""
        c = self._outbox.c
        same = self._select().where(
            c.sink == event.sink,
            c.aggregate_type == event.aggregate_type,
            c.aggregate_id == event.aggregate_id,
        )
        at = c.position
        older = same.where(at <= event.position, at > event.position - SEARCH_WINDOW)
        newer = same.where(at > event.position, at < event.position + SEARCH_WINDOW)
        older = older.order_by(at.desc()).limit(each_way + 1)
        newer = newer.order_by(at).limit(each_way)
        async with self._connect() as db:
            both = union_all(select(older.subquery()), select(newer.subquery()))
            rows = (await db.execute(both)).all()
        return sorted((_summary(row) for row in rows), key=lambda event: event.position)

    async def caused_by(self, events: Sequence[EventSummary]) -> list[EventSummary]:
        """The events that handlers of these events recorded, within the search window."""
        if not events:
            return []
        c, start = self._outbox.c, min(event.position for event in events)
        cause = c["metadata"]["causation_id"].as_string()
        wanted = cause.in_({str(event.event_id) for event in events})
        near = self._select().where(c.position > start, c.position < start + SEARCH_WINDOW, wanted)
        async with self._connect() as db:
            return [
                _summary(row) for row in await db.execute(near.order_by(c.position).limit(MAX_PAGE))
            ]

    async def failures(self) -> list[FailureGroup]:
        """Failed events, grouped by sink, event type and error; the most frequent first."""
        c = self._outbox.c
        some = select(c.sink, c.event_type, c.last_error, c.created_at)
        failed = some.where(c.status == FAILED).limit(MAX_COUNTED).subquery().c
        number = func.count()
        groups = (
            select(
                failed.sink,
                failed.event_type,
                failed.last_error.label("error"),
                number.label("events"),
                func.min(failed.created_at).label("first"),
                func.max(failed.created_at).label("last"),
            )
            .group_by(failed.sink, failed.event_type, failed.last_error)
            .order_by(number.desc())
            .limit(MAX_PAGE)
        )
        async with self._connect() as db:
            return [FailureGroup(**row._mapping) for row in await db.execute(groups)]

    async def blocked(self, limit: int = 50) -> list[EventSummary]:
        """Events that wait for a retry, and block the later events of their aggregate."""
        c = self._outbox.c
        waiting = self._select().where(c.status == PENDING, c.next_retry_at.is_not(None))
        some = waiting.limit(MAX_VISITED).subquery()
        async with self._connect() as db:
            soonest = select(some).order_by(some.c.next_retry_at).limit(min(limit, MAX_PAGE))
            return [_summary(row) for row in await db.execute(soonest)]

    async def parked(self, limit: int = 50) -> list[ParkedAggregate]:
        """Failed events that a person must retry or discard, since others are parked behind."""
        outbox, waiting = self._outbox, self._outbox.alias("waiting")
        behind = select(func.count()).where(
            waiting.c.aggregate_key == outbox.c.aggregate_key,
            waiting.c.published_at.is_(None),
            self._backlog.is_parked(waiting),
        )
        failed = self._select().add_columns(behind.scalar_subquery().label("events"))
        some = failed.where(outbox.c.status == FAILED).limit(MAX_VISITED).subquery()
        first = select(some).where(some.c.events > 0).order_by(some.c.position)
        async with self._connect() as db:
            rows = await db.execute(first.limit(min(limit, MAX_PAGE)))
            return [_parked(row) for row in rows]

    async def handled(self) -> list[tuple[str, int, datetime]]:
        """Each handler with its number of the latest marks, and the time of its last mark."""
        c = self._tables.processed.c
        latest = select(c.handler_name, c.processed_at).order_by(c.processed_at.desc())
        some = latest.limit(MAX_COUNTED).subquery().c
        groups = select(some.handler_name, func.count(), func.max(some.processed_at))
        async with self._connect() as db:
            rows = await db.execute(groups.group_by(some.handler_name).order_by(some.handler_name))
            return [(row[0], row[1], row[2]) for row in rows.all()]

    async def actions(self, limit: int = 50, action: str | None = None) -> list[Row[Any]]:
        """The audit log, latest first; only one kind of action if `action` is given."""
        table = self._tables.actions
        latest = select(table).order_by(table.c.id.desc()).limit(limit)
        latest = latest if action is None else latest.where(table.c.action == action)
        async with self._connect() as db:
            return list(await db.execute(latest))

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as db:
            if db.dialect.name == "postgresql":
                await db.execute(text(f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT}'"))
            yield db

    async def _search_range(
        self, db: AsyncConnection, wanted: EventFilter, top: int
    ) -> tuple[FromClause, int, int]:
        """Where to search: the rows, the position above the range, and the lowest position."""
        outbox, indexed = self._outbox, wanted.status in (PENDING, RETRYING, FAILED)
        if wanted in (EventFilter(), EventFilter(event_id=wanted.event_id)) or (
            indexed and wanted.aggregate
        ):
            return outbox, top, 0
        if indexed:
            candidates = EventFilter(status=wanted.status, last=top - 1)
            some = (
                select(outbox.c.position).where(*candidates.conditions(outbox)).limit(_MAX_SURVEYED)
            )
            at, number = some.subquery().c.position, func.count()
            count, low, high = (await db.execute(select(number, func.min(at), func.max(at)))).one()
            if not count:
                return outbox, 0, 0
            if count < MAX_COUNTED:
                # Read all of these rows first, and filter them then: LIMIT forces that order.
                conditions = replace(candidates, first=low, last=high).conditions(outbox)
                columns = [column for column in outbox.c if column.name != "payload"]
                return select(*columns).where(*conditions).limit(MAX_COUNTED).subquery(), top, 0
            top = high + 1 if count < _MAX_SURVEYED else top
        return outbox, top, max(0, top - SEARCH_WINDOW)

    async def _above_newest(self, db: AsyncConnection) -> int:
        return (await db.scalar(select(func.max(self._outbox.c.position))) or 0) + 1

    def _select(self, table: FromClause | None = None) -> Select[Any]:
        """The columns of an EventSummary."""
        c = self._outbox.c if table is None else table.c
        return select(
            c.position,
            c.id.label("event_id"),
            c.sink,
            c.event_type,
            c.event_version,
            c.aggregate_type,
            c.aggregate_id,
            c.status,
            c.retry_count,
            c.crash_count,
            c.occurred_at,
            c.created_at,
            c.next_retry_at,
            c.published_at,
            c.delivery_number,
            c.last_error,
            c["metadata"]["correlation_id"].as_string().label("correlation_id"),
            c["metadata"]["causation_id"].as_string().label("causation_id"),
            self._backlog.is_parked(table).label("parked"),
        )


def _parked(row: Row[Any]) -> ParkedAggregate:
    columns = dict(row._mapping)
    events = columns.pop("events")
    return ParkedAggregate(events=events, failed=_event(columns))


def _summary(row: Row[Any]) -> EventSummary:
    return _event(dict(row._mapping))


def _event(columns: dict[str, Any]) -> EventSummary:
    if columns.pop("parked"):
        columns["status"] = PARKED
    elif columns["status"] == PENDING and columns["next_retry_at"] is not None:
        columns["status"] = RETRYING
    return EventSummary(**columns)

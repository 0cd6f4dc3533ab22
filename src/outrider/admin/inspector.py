"""Looking at the outbox: what waits, what failed, who works, and the story of one event.

Every question has an answer in bounded time, however large the tables are: counts stop at a
limit and go on as estimates, lists are pages by position, and searches without an index look at
so many rows at once and say how far they came. No index is kept for looking alone.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select, text, union_all

from outrider.admin.filters import RETRYING, EventFilter
from outrider.admin.summaries import (
    EventSummary,
    FailureGroup,
    LaneSummary,
    Page,
    RelaySummary,
    SinkSummary,
)
from outrider.store.schema.tables import FAILED, PENDING, OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from sqlalchemy import FromClause, Row, Select
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

COUNTED: Final = 20_000
"""How far counts are exact."""
VISITED: Final = 5_000
"""How far, if an index does not tell and rows must be visited, all over the table."""
WINDOW: Final = 100_000
"""How many rows a search without an index looks at before it answers."""
PAGE: Final = 200
_SURVEYED: Final = 200_000
_RECENT: Final = 1_000
_MINUTE: Final = timedelta(minutes=1)
_PATIENCE: Final = "5s"

# The smallest position of each lane is one step in the index; of all lanes it would be a walk.
_OLDEST: Final = """
SELECT created_at FROM {outbox} WHERE position = (
    SELECT min(head.position) FROM generate_series(0, 63) AS lanes (lane)
    CROSS JOIN LATERAL (
        SELECT position FROM {outbox}
        WHERE status = 'pending' AND sink = :sink AND lane = lanes.lane ORDER BY position LIMIT 1
    ) AS head
)
"""
_ESTIMATE: Final = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(:index)"


class OutboxInspector:
    """Reads only; on PostgreSQL no question may take longer than five seconds."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        self._engine = engine
        self._tables = tables or OutboxTables()
        self._outbox = self._tables.outbox

    async def sinks(self) -> list[SinkSummary]:
        async with self._reading() as db:
            known = sorted((await self._known(db)).items())
            c = self._outbox.c
            retrying = await self._by_sink(db, c.status == PENDING, c.next_retry_at.is_not(None))
            failed = await self._by_sink(db, c.status == FAILED)
            return [await self._sink_state(db, *one, retrying, failed) for one in known]

    async def sink_names(self) -> list[str]:
        async with self._reading() as db:
            return sorted(await self._known(db))

    async def relays(self) -> list[RelaySummary]:
        c, lanes = self._tables.relays.c, self._tables.lanes.c
        held = select(func.count()).where(lanes.owner == c.id).scalar_subquery().label("lanes")
        now = datetime.now(UTC)
        async with self._reading() as db:
            rows = await db.execute(select(c.name, c.sink, held, c.started_at, c.expires_at))
            return [RelaySummary(**row._mapping, alive=row.expires_at > now) for row in rows]

    async def lanes(self) -> list[LaneSummary]:
        """Every lane that was ever held, with its holder of now."""
        relays, lanes = self._tables.relays, self._tables.lanes
        holder = (lanes.c.owner == relays.c.id) & (lanes.c.expires_at > datetime.now(UTC))
        every = select(lanes.c.sink, lanes.c.lane, relays.c.name.label("relay"))
        every = every.select_from(lanes.outerjoin(relays, holder))
        async with self._reading() as db:
            rows = await db.execute(every.order_by(lanes.c.sink, lanes.c.lane))
            return [LaneSummary(**row._mapping) for row in rows]

    async def events(
        self, wanted: EventFilter, *, before: int | None = None, limit: int = 50
    ) -> Page:
        """A page of events, newest first, all older than `before`."""
        limit = max(1, min(limit, PAGE))
        async with self._reading() as db:
            top = before if before is not None else await self._above_newest(db)
            rows_of, top, bottom = await self._reach(db, wanted, top)
            c = rows_of.c
            page = self._lines(rows_of).where(
                *wanted.conditions(rows_of), c.position < top, c.position >= bottom
            )
            rows = (await db.execute(page.order_by(c.position.desc()).limit(limit))).all()
        lines = [_line(row) for row in rows]
        if len(lines) == limit:
            return Page(events=lines, older=lines[-1].position)
        return Page(events=lines, older=bottom or None)

    async def count(self, wanted: EventFilter, most: int = COUNTED) -> int:
        """How many there are, counted up to `most`."""
        async with self._reading() as db:
            return await self._count(db, *wanted.conditions(self._outbox), most=most)

    async def event(self, event_id: UUID) -> list[EventSummary]:
        """The event at each of its sinks."""
        async with self._reading() as db:
            rows = await db.execute(self._lines().where(self._outbox.c.id == event_id))
            return [_line(row) for row in rows.all()]

    async def payload(self, event_id: UUID) -> dict[str, Any] | None:
        return await self._json(event_id, "payload")

    async def metadata(self, event_id: UUID) -> dict[str, Any] | None:
        return await self._json(event_id, "metadata")

    async def _json(self, event_id: UUID, column: str) -> dict[str, Any] | None:
        c = self._outbox.c
        async with self._reading() as db:
            one = select(c[column]).where(c.id == event_id).limit(1)
            found: dict[str, Any] | None = await db.scalar(one)
            return found

    async def handled_by(self, event_id: UUID) -> list[tuple[str, datetime]]:
        """The handlers that are done with this event, and since when."""
        c = self._tables.processed.c
        marks = select(c.handler_name, c.processed_at).where(c.event_id == event_id)
        async with self._reading() as db:
            rows = await db.execute(marks.order_by(c.processed_at).limit(PAGE))
            return [(row[0], row[1]) for row in rows]

    async def neighbours(self, event: EventSummary, each_way: int = 5) -> list[EventSummary]:
        """What happened to the same aggregate shortly before and after, as far as it is near."""
        c = self._outbox.c
        same = self._lines().where(
            c.sink == event.sink,
            c.aggregate_type == event.aggregate_type,
            c.aggregate_id == event.aggregate_id,
        )
        at = c.position
        older = same.where(at <= event.position, at > event.position - WINDOW)
        newer = same.where(at > event.position, at < event.position + WINDOW)
        older = older.order_by(at.desc()).limit(each_way + 1)
        newer = newer.order_by(at).limit(each_way)
        async with self._reading() as db:
            both = union_all(select(older.subquery()), select(newer.subquery()))
            rows = (await db.execute(both)).all()
        return sorted((_line(row) for row in rows), key=lambda line: line.position)

    async def caused_by(self, events: Sequence[EventSummary]) -> list[EventSummary]:
        """What handlers of these events recorded, as far as it is near."""
        if not events:
            return []
        c, start = self._outbox.c, min(event.position for event in events)
        cause = c["metadata"]["causation_id"].as_string()
        wanted = cause.in_({str(event.event_id) for event in events})
        near = self._lines().where(c.position > start, c.position < start + WINDOW, wanted)
        async with self._reading() as db:
            return [_line(row) for row in await db.execute(near.order_by(c.position).limit(PAGE))]

    async def failures(self) -> list[FailureGroup]:
        """Failed events by sink, type and error; the most frequent first."""
        c = self._outbox.c
        some = select(c.sink, c.event_type, c.last_error, c.created_at)
        failed = some.where(c.status == FAILED).limit(COUNTED).subquery().c
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
            .limit(PAGE)
        )
        async with self._reading() as db:
            return [FailureGroup(**row._mapping) for row in await db.execute(groups)]

    async def blocked(self, limit: int = 50) -> list[EventSummary]:
        """Events that wait for a retry, and hold back what comes after in their aggregate."""
        c = self._outbox.c
        waiting = self._lines().where(c.status == PENDING, c.next_retry_at.is_not(None))
        some = waiting.limit(VISITED).subquery()
        async with self._reading() as db:
            soonest = select(some).order_by(some.c.next_retry_at).limit(min(limit, PAGE))
            return [_line(row) for row in await db.execute(soonest)]

    async def handled(self) -> list[tuple[str, int, datetime]]:
        """Each handler with how many of the latest marks are its own, and when the last came."""
        c = self._tables.processed.c
        latest = select(c.handler_name, c.processed_at).order_by(c.processed_at.desc())
        some = latest.limit(COUNTED).subquery().c
        groups = select(some.handler_name, func.count(), func.max(some.processed_at))
        async with self._reading() as db:
            rows = await db.execute(groups.group_by(some.handler_name).order_by(some.handler_name))
            return [(row[0], row[1], row[2]) for row in rows.all()]

    async def actions(self, limit: int = 50, action: str | None = None) -> list[Row[Any]]:
        """What people did, the latest first; of one kind, if it is named."""
        table = self._tables.actions
        latest = select(table).order_by(table.c.id.desc()).limit(limit)
        latest = latest if action is None else latest.where(table.c.action == action)
        async with self._reading() as db:
            return list(await db.execute(latest))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as db:
            if db.dialect.name == "postgresql":
                await db.execute(text(f"SET LOCAL statement_timeout = '{_PATIENCE}'"))
            yield db

    async def _known(self, db: AsyncConnection) -> dict[str, int]:
        """Sinks that had a relay, with their deliveries, and those that wait for their first."""
        known = {
            row.sink: row.last_delivery_number
            for row in await db.execute(select(self._tables.sinks))
        }
        c = self._outbox.c
        # One step in the index for each sink; DISTINCT would be a walk.
        after = select(func.min(c.sink)).where(c.status == PENDING)
        sink = await db.scalar(after)
        while sink is not None:
            known.setdefault(sink, 0)
            sink = await db.scalar(after.where(c.sink > sink))
        return known

    async def _by_sink(self, db: AsyncConnection, *conditions: Any) -> Counter[str]:
        some = select(self._outbox.c.sink).where(*conditions).limit(VISITED).subquery().c
        rows = await db.execute(select(some.sink, func.count()).group_by(some.sink))
        return Counter({row[0]: row[1] for row in rows})

    async def _sink_state(
        self,
        db: AsyncConnection,
        sink: str,
        last_delivery_number: int,
        retrying: Counter[str],
        failed: Counter[str],
    ) -> SinkSummary:
        c = self._outbox.c
        waiting = await self._count(db, c.sink == sink, c.status == PENDING)
        estimate = await self._estimate(db) if waiting == COUNTED else None
        return SinkSummary(
            sink=sink,
            pending=waiting if estimate is None else max(waiting, estimate),
            estimated=estimate is not None,
            retrying=retrying[sink],
            failed=failed[sink],
            at_least=VISITED in (retrying.total(), failed.total()),
            oldest=await self._oldest(db, sink) if waiting else None,
            rate=await self._rate(db, sink),
            last_delivery_number=last_delivery_number,
        )

    async def _count(self, db: AsyncConnection, *conditions: Any, most: int = COUNTED) -> int:
        found = select(text("1")).select_from(self._outbox).where(*conditions).limit(most)
        return await db.scalar(select(func.count()).select_from(found.subquery())) or 0

    async def _estimate(self, db: AsyncConnection) -> int | None:
        if db.dialect.name != "postgresql":
            return None
        names = self._tables.names
        index = ".".join(n for n in (names.schema, names.all["pending_index"]) if n)
        found = await db.scalar(text(_ESTIMATE), {"index": index})
        return int(found) if found and found > 0 else None

    async def _oldest(self, db: AsyncConnection, sink: str) -> timedelta | None:
        c = self._outbox.c
        if db.dialect.name == "postgresql":
            outbox = self._tables.names.quoted("outbox", db.dialect)
            since = await db.scalar(text(_OLDEST.format(outbox=outbox)), {"sink": sink})
        else:
            first = select(c.created_at).where(c.status == PENDING, c.sink == sink)
            since = await db.scalar(first.order_by(c.position).limit(1))
        return max(timedelta(0), datetime.now(UTC) - since) if since else None

    async def _rate(self, db: AsyncConnection, sink: str) -> float:
        """From the latest deliveries, none of them older than a minute."""
        c, now = self._outbox.c, datetime.now(UTC)
        latest = select(c.published_at).where(c.sink == sink, c.delivery_number.is_not(None))
        rows = await db.scalars(latest.order_by(c.delivery_number.desc()).limit(_RECENT))
        recent = [moment for moment in rows if moment and moment > now - _MINUTE]
        if not recent:
            return 0.0
        over = now - min(recent) if len(recent) == _RECENT else _MINUTE
        return len(recent) / max(over.total_seconds(), 0.001)

    async def _reach(
        self, db: AsyncConnection, wanted: EventFilter, top: int
    ) -> tuple[FromClause, int, int]:
        """Where to look for a page: in which rows, below which position, down to which."""
        outbox, indexed = self._outbox, wanted.status in (PENDING, RETRYING, FAILED)
        if wanted in (EventFilter(), EventFilter(event_id=wanted.event_id)) or (
            indexed and wanted.aggregate
        ):
            return outbox, top, 0
        if indexed:
            here = EventFilter(status=wanted.status, last=top - 1)
            some = select(outbox.c.position).where(*here.conditions(outbox)).limit(_SURVEYED)
            at, number = some.subquery().c.position, func.count()
            found, low, high = (await db.execute(select(number, func.min(at), func.max(at)))).one()
            if not found:
                return outbox, 0, 0
            if found < COUNTED:
                # All of them, and then the filter: the limit keeps the planner to this order.
                few = replace(here, first=low, last=high).conditions(outbox)
                shown = [column for column in outbox.c if column.name != "payload"]
                return select(*shown).where(*few).limit(COUNTED).subquery(), top, 0
            top = high + 1 if found < _SURVEYED else top
        return outbox, top, max(0, top - WINDOW)

    async def _above_newest(self, db: AsyncConnection) -> int:
        return (await db.scalar(select(func.max(self._outbox.c.position))) or 0) + 1

    def _lines(self, rows_of: FromClause | None = None) -> Select[Any]:
        c = self._outbox.c if rows_of is None else rows_of.c
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
        )


def _line(row: Row[Any]) -> EventSummary:
    facts = dict(row._mapping)
    if facts["status"] == PENDING and facts["next_retry_at"] is not None:
        facts["status"] = RETRYING
    return EventSummary(**facts)

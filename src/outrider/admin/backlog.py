"""The backlog: pending, retrying, parked and failed events of each sink, in bounded time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, exists, func, select, text

from outrider.admin.summaries import SinkSummary
from outrider.store.postgres.claim_sql import PARKED
from outrider.store.schema.tables import FAILED, PENDING, OutboxTables

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, FromClause
    from sqlalchemy.ext.asyncio import AsyncConnection

MAX_COUNTED: Final = 20_000
"""Up to this number, counts are exact."""
MAX_VISITED: Final = 5_000
"""The same limit for counts that an index alone cannot answer, so that rows must be read."""
_MAX_RATE_SAMPLES: Final = 1_000
_RATE_PERIOD: Final = timedelta(minutes=1)

# The oldest position of one lane is one index lookup; of all lanes at once it would be an index
# scan.
_OLDEST: Final = """
SELECT created_at FROM {outbox} WHERE position = (
    SELECT min(head.position) FROM generate_series(0, 63) AS lanes (lane)
    CROSS JOIN LATERAL (
        SELECT position FROM {outbox} AS candidate
        WHERE status = 'pending' AND sink = :sink AND lane = lanes.lane{parked}
        ORDER BY position LIMIT 1
    ) AS head
)
"""
_ESTIMATE: Final = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(:index)"


class Backlog:
    """Reads it on a connection of the inspector."""

    def __init__(self, tables: OutboxTables) -> None:
        self._tables, self._outbox = tables, tables.outbox
        self._parking = select(tables.sinks.c.sink).where(tables.sinks.c.parks)

    async def sinks(self, db: AsyncConnection) -> list[SinkSummary]:
        c = self._outbox.c
        counts = {
            "retrying": await self._by_sink(db, c.status == PENDING, c.next_retry_at.is_not(None)),
            "parked": await self._parked(db),
            "failed": await self._by_sink(db, c.status == FAILED),
        }
        numbers = sorted((await self.delivery_numbers(db)).items())
        return [await self._summary(db, sink, number, counts) for sink, number in numbers]

    async def delivery_numbers(self, db: AsyncConnection) -> dict[str, int]:
        """Each sink with its last delivery number, also sinks that never had a relay."""
        numbers = {
            row.sink: row.last_delivery_number
            for row in await db.execute(select(self._tables.sinks))
        }
        c = self._outbox.c
        # One index lookup per sink; DISTINCT would scan the whole index.
        after = select(func.min(c.sink)).where(c.status == PENDING)
        sink = await db.scalar(after)
        while sink is not None:
            numbers.setdefault(sink, 0)
            sink = await db.scalar(after.where(c.sink > sink))
        return numbers

    def is_parked(self, table: FromClause | None = None) -> ColumnElement[bool]:
        """Whether a row waits behind a failed event of its aggregate, for a person."""
        c, failed = (self._outbox if table is None else table).c, self._outbox.alias("failed").c
        # Not EXISTS (SELECT * …): the role of the dashboard may not select the payload.
        behind = exists(failed.position).where(
            failed.status == FAILED, failed.aggregate_key == c.aggregate_key
        )
        return and_(c.status == PENDING, c.sink.in_(self._parking), behind)

    async def _parked(self, db: AsyncConnection) -> Counter[str]:
        """Counted from the failed events, of which there are fewer than pending ones."""
        sinks = list(await db.scalars(self._parking))
        if not sinks:
            return Counter()
        c, failed = self._outbox.c, self._outbox.alias("failed").c
        keys = select(failed.aggregate_key).where(failed.status == FAILED, failed.sink.in_(sinks))
        behind = c.aggregate_key.in_(keys.limit(MAX_VISITED))
        return await self._by_sink(db, c.status == PENDING, c.published_at.is_(None), behind)

    async def _by_sink(self, db: AsyncConnection, *conditions: ColumnElement[bool]) -> Counter[str]:
        some = select(self._outbox.c.sink).where(*conditions).limit(MAX_VISITED).subquery().c
        rows = await db.execute(select(some.sink, func.count()).group_by(some.sink))
        return Counter({row[0]: row[1] for row in rows})

    async def _summary(
        self, db: AsyncConnection, sink: str, number: int, counts: dict[str, Counter[str]]
    ) -> SinkSummary:
        c = self._outbox.c
        pending = await self.count(db, c.sink == sink, c.status == PENDING)
        estimate = await self._estimate(db) if pending == MAX_COUNTED else None
        return SinkSummary(
            sink=sink,
            pending=pending if estimate is None else max(pending, estimate),
            estimated=estimate is not None,
            **{name: by_sink[sink] for name, by_sink in counts.items()},
            at_least=MAX_VISITED in (by_sink.total() for by_sink in counts.values()),
            oldest=await self._oldest(db, sink) if pending else None,
            rate=await self._rate(db, sink),
            last_delivery_number=number,
        )

    async def count(
        self, db: AsyncConnection, *conditions: ColumnElement[bool], limit: int = MAX_COUNTED
    ) -> int:
        rows = select(text("1")).select_from(self._outbox).where(*conditions).limit(limit)
        return await db.scalar(select(func.count()).select_from(rows.subquery())) or 0

    async def _estimate(self, db: AsyncConnection) -> int | None:
        if db.dialect.name != "postgresql":
            return None
        names = self._tables.names
        index = ".".join(n for n in (names.schema, names.all["pending_index"]) if n)
        estimate = await db.scalar(text(_ESTIMATE), {"index": index})
        return int(estimate) if estimate and estimate > 0 else None

    async def _oldest(self, db: AsyncConnection, sink: str) -> timedelta | None:
        """The age of the oldest pending event that is not parked."""
        c, parks = self._outbox.c, sink in list(await db.scalars(self._parking))
        if db.dialect.name == "postgresql":
            outbox = self._tables.names.quoted("outbox", db.dialect)
            parked = PARKED.format(outbox=outbox) if parks else ""
            oldest = text(_OLDEST.format(outbox=outbox, parked=parked))
            since = await db.scalar(oldest, {"sink": sink})
        else:
            first = select(c.created_at).where(c.status == PENDING, c.sink == sink)
            first = first.where(~self.is_parked()) if parks else first
            since = await db.scalar(first.order_by(c.position).limit(1))
        return max(timedelta(0), datetime.now(UTC) - since) if since else None

    async def _rate(self, db: AsyncConnection, sink: str) -> float:
        """Events per second, from the latest deliveries of the last minute."""
        c, now = self._outbox.c, datetime.now(UTC)
        latest = select(c.published_at).where(c.sink == sink, c.delivery_number.is_not(None))
        rows = await db.scalars(latest.order_by(c.delivery_number.desc()).limit(_MAX_RATE_SAMPLES))
        recent = [moment for moment in rows if moment and moment > now - _RATE_PERIOD]
        if not recent:
            return 0.0
        period = now - min(recent) if len(recent) == _MAX_RATE_SAMPLES else _RATE_PERIOD
        return len(recent) / max(period.total_seconds(), 0.001)

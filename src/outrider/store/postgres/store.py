"""The outbox store on PostgreSQL: leases, claims, settling, deleting, being woken up."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.lanes import LANES_FREE, LaneLease, fair_share, surplus
from outrider.ports import DEFAULT_SINK
from outrider.store.claimed_events import KEY, LANE, POSITION, LaneQuota, event_of
from outrider.store.engines import describe
from outrider.store.postgres.connections import ConnectionPool
from outrider.store.postgres.notifications import NotificationListener
from outrider.store.postgres.scan_start import ScanStart
from outrider.store.postgres.statements import Statements
from outrider.store.schema.migrate import refuse_version
from outrider.store.schema.tables import OutboxTables
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from asyncpg import Connection, Record
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.outcomes import ClaimedEvent, RefusedEvent

    Rows = Sequence[Record]


class PostgresOutboxStore:
    """Fits RelayStore. It keeps no session state, so a transaction pooler may lie between."""

    def __init__(
        self,
        engine: AsyncEngine,
        tables: OutboxTables | None = None,
        *,
        sink: str = DEFAULT_SINK,
        park: bool = False,
        timeout: timedelta = timedelta(seconds=10),
        announce: bool = False,
        scan_start: ScanStart | None = None,
    ) -> None:
        self.sink = sink
        self._names = names = (tables or OutboxTables()).names
        self._channel = names.channel
        self._sql = Statements(names, park=park)
        self._url = describe(engine.url)
        self._pool = ConnectionPool(engine, timeout, names)
        self._scan_start, self._quota = scan_start or ScanStart(), LaneQuota()
        self._listener: NotificationListener | None = None
        self._readers = (
            notifier_for(engine.sync_engine, names.delivered_channel) if announce else None
        )

    async def open(self, wake: Callable[[str], None], /) -> str:
        async def prepare(connection: Connection[Record]) -> None:
            refuse_version(await connection.fetchval(self._sql.version), self._names)
            for statement in self._sql.prepare:
                await connection.execute(statement, self.sink)

        self._pool.behind_pooler = True  # until a notification shows that there is none
        await self._pool.run(prepare)
        self._listener = NotificationListener(self._pool, self._channel, wake)
        notified = await self._listener.open()
        self._pool.behind_pooler = not notified
        return (
            f"{self._url} ({'notified' if notified else 'polling only: no notification arrives'})"
        )

    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        async def renew(connection: Connection[Record]) -> LaneLease:
            mine = await connection.fetch(self._sql.renew, self.sink, relay, name, duration)
            lanes = {row[0]: row[1] for row in mine}
            await connection.execute(self._sql.delete_dead_relays, self.sink)
            live = [row[0] for row in await connection.fetch(self._sql.live_relays, self.sink)]
            share = fair_share(relay, live)
            orphaned = set()
            if len(lanes) < share:
                wanted = share - len(lanes)
                taken = await connection.fetch(self._sql.take, self.sink, relay, duration, wanted)
                lanes.update((row[0], row[1]) for row in taken)
                orphaned = {row[0] for row in taken if row[2]}
            return LaneLease(lanes, frozenset(orphaned), frozenset(surplus(lanes, share)))

        lease = await self._pool.run(renew)
        self._scan_start.lease(lease.lanes)
        return lease

    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        async def release(connection: Connection[Record]) -> None:
            released = None if lanes is None else list(lanes)
            await connection.execute(self._sql.release, self.sink, relay, released)
            if lanes is None:
                await connection.execute(self._sql.sign_off, self.sink, relay)
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, LANES_FREE)

        await self._pool.run(release)

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        numbers, per_lane = list(lanes), self._quota.per_lane(limit)
        starts = self._scan_start.for_claim(numbers)

        async def scan(connection: Connection[Record], starts: list[int]) -> Rows:
            started = time.perf_counter()
            rows: Rows = await connection.fetch(
                self._sql.claim, self.sink, numbers, starts, per_lane, limit
            )
            self._scan_start.scanned(starts, len(rows), time.perf_counter() - started)
            return rows

        async def read(connection: Connection[Record]) -> Rows:
            rows = await scan(connection, starts)
            if any(starts) and await self._late(
                connection, rows, dict(zip(numbers, starts, strict=True))
            ):
                return await scan(connection, [0] * len(numbers))
            return rows

        rows = await self._pool.run(read)
        self._scan_start.found({row[LANE]: row[POSITION] for row in reversed(rows)})
        self._quota.adapt(rows, limit)
        return [event_of(row) for row in rows]

    async def _late(
        self, connection: Connection[Record], rows: Rows, starts: Mapping[int, int]
    ) -> bool:
        """Whether an older event of one of these aggregates lies below the scan start."""
        oldest = {row[KEY]: row[POSITION] for row in reversed(rows)}
        lows = {key: self._scan_start.settled_before(key, at) for key, at in oldest.items()}
        highs = {row[KEY]: starts[row[LANE]] for row in rows}
        unsure = [key for key, low in lows.items() if low < highs[key] - 1]
        if not unsure:
            return False
        bounds = [lows[key] for key in unsure], [highs[key] for key in unsure]
        return bool(await connection.fetchval(self._sql.late, unsure, *bounds))

    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        unknown: Sequence[ClaimedEvent],
        /,
    ) -> int:
        fence = (self.sink, relay, list(tokens), list(tokens.values()))

        async def write(connection: Connection[Record]) -> int:
            changed = 0
            if accepted:
                where = [e.position for e in accepted], [e.lane for e in accepted]
                changed += _count(await connection.execute(self._sql.accept, *fence, *where))
            if refused:
                columns = _columns(refused)
                changed += _count(await connection.execute(self._sql.refuse, *fence, *columns))
            return changed

        changed = await self._pool.run(write) if accepted or refused else 0
        if self._readers and accepted:
            self._readers.notify()
        # A refused event may be pending again: after its backoff, or when a person retries it.
        rejected = [r.event for r in refused]
        self._scan_start.settled([*accepted, *rejected], [*unknown, *rejected])
        return changed

    async def adjust_crash_count(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        fence = (self.sink, relay, list(tokens), list(tokens.values()))
        where = [e.position for e in events], [e.lane for e in events]
        sql = self._sql.adjust_crash_count
        await self._pool.run(lambda connection: connection.execute(sql, *fence, *where, by))

    async def count_pending(self, most: int, /) -> int:
        async def count(connection: Connection[Record]) -> int:
            return int(await connection.fetchval(self._sql.count_pending, self.sink, most))

        return await self._pool.run(count)

    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        async def delete(connection: Connection[Record]) -> int:
            sql = self._sql.delete_published
            return _count(await connection.execute(sql, self.sink, limit, older_than))

        return await self._pool.run(delete)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        await self._pool.close()


def _count(status: str) -> int:
    """The number of rows in a command tag such as UPDATE 3."""
    return int(status.rpartition(" ")[2])


def _columns(refused: Sequence[RefusedEvent]) -> tuple[Sequence[object], ...]:
    return (
        [r.event.position for r in refused],
        [r.event.lane for r in refused],
        [r.wait for r in refused],
        [r.reason for r in refused],
        [r.counted for r in refused],
    )

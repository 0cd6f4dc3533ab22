"""The outbox store on PostgreSQL: leases, claims, settling, forgetting, being woken up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outrider.ports import LANES_FREE, Lease
from outrider.routing import DEFAULT_SINK
from outrider.sql.claimed import KEY, LANE, POSITION, Portions, event_of
from outrider.sql.delivered import delivered_channel
from outrider.sql.floors import Floors
from outrider.sql.lanes import fair_share, surplus
from outrider.sql.links import Links
from outrider.sql.listening import Ears
from outrider.sql.postgres_sql import Sql
from outrider.sql.tables import OutboxTables
from outrider.sql.wakeup import waker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from asyncpg import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.ports import ClaimedEvent, RefusedEvent


class PostgresOutbox:
    """Fits OutboxStore. It keeps no session state, so a transaction pooler may lie between."""

    def __init__(
        self,
        engine: AsyncEngine,
        tables: OutboxTables | None = None,
        *,
        sink: str = DEFAULT_SINK,
        park: bool = False,
        deadline: float = 10.0,
        floors: Floors | None = None,
        announce: bool = False,
    ) -> None:
        self.sink = sink
        names = (tables or OutboxTables()).names
        self._channel = names.channel
        self._sql = Sql(names, park=park)
        self._engine = engine
        self._links = Links(engine, deadline)
        self._floors, self._portions = floors or Floors(), Portions()
        self._ears: Ears | None = None
        self._readers = waker_of(engine.sync_engine, delivered_channel(names)) if announce else None

    async def open(self, wake: Callable[[str], None], /) -> str:
        async def prepare(link: Connection[Any]) -> None:
            for statement in self._sql.prepare:
                await link.execute(statement, self.sink)

        self._links.pooled = True  # until a notification shows that there is nobody in between
        await self._links.run(prepare)
        self._ears = Ears(self._links, self._channel, wake)
        listens = await self._ears.open()
        self._links.pooled = not listens
        where = self._engine.url.render_as_string(hide_password=True)
        return f"{where} ({'notified' if listens else 'polling only: no notification arrives'})"

    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> Lease:
        async def renew(link: Connection[Any]) -> Lease:
            mine = await link.fetch(self._sql.renew, self.sink, relay, name, duration)
            lanes = {row[0]: row[1] for row in mine}
            await link.execute(self._sql.forget_dead_relays, self.sink)
            live = [row[0] for row in await link.fetch(self._sql.live_relays, self.sink)]
            share = fair_share(relay, live)
            orphaned = set()
            if len(lanes) < share:
                wanted = share - len(lanes)
                taken = await link.fetch(self._sql.take, self.sink, relay, duration, wanted)
                lanes.update((row[0], row[1]) for row in taken)
                orphaned = {row[0] for row in taken if row[2]}
            return Lease(lanes, frozenset(orphaned), frozenset(surplus(lanes, share)))

        lease = await self._links.run(renew)
        self._floors.lease(lease.lanes)
        return lease

    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        async def give(link: Connection[Any]) -> None:
            given = None if lanes is None else list(lanes)
            await link.execute(self._sql.give, self.sink, relay, given)
            if lanes is None:
                await link.execute(self._sql.goodbye, self.sink, relay)

            await link.execute("SELECT pg_notify($1, $2)", self._channel, LANES_FREE)

        await self._links.run(give)

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        numbers, per_lane = list(lanes), self._portions.per_lane(limit)
        floors = self._floors.for_claim(numbers)

        async def look(link: Connection[Any], floors: list[int]) -> Sequence[Any]:
            asked = (self.sink, numbers, floors, per_lane, limit)
            started = time.perf_counter()
            rows = await link.fetch(self._sql.claim, *asked)
            self._floors.looked(floors, len(rows), time.perf_counter() - started)
            return rows

        async def read(link: Connection[Any]) -> Sequence[Any]:
            rows = await look(link, floors)
            if any(floors) and await self._late(
                link, rows, dict(zip(numbers, floors, strict=True))
            ):
                return await look(link, [0] * len(numbers))
            return rows

        rows = await self._links.run(read)
        self._floors.found({row[LANE]: row[POSITION] for row in reversed(rows)})
        self._portions.learn(rows, limit)
        return [event_of(row) for row in rows]

    async def _late(
        self, link: Connection[Any], rows: Sequence[Any], floors: Mapping[int, int]
    ) -> bool:
        """Whether an older event of one of these aggregates lies below the floor."""
        oldest = {row[KEY]: row[POSITION] for row in reversed(rows)}
        lows = {key: self._floors.settled_before(key, at) for key, at in oldest.items()}
        highs = {row[KEY]: floors[row[LANE]] for row in rows}
        unsure = [key for key, low in lows.items() if low < highs[key] - 1]
        if not unsure:
            return False
        bounds = [lows[key] for key in unsure], [highs[key] for key in unsure]
        return bool(await link.fetchval(self._sql.late, unsure, *bounds))

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

        async def write(link: Connection[Any]) -> int:
            changed = 0
            if accepted:
                where = [e.position for e in accepted], [e.lane for e in accepted]
                changed += _count(await link.execute(self._sql.accept, *fence, *where))
            if refused:
                changed += _count(await link.execute(self._sql.refuse, *fence, *_columns(refused)))
            return changed

        changed = await self._links.run(write) if accepted or refused else 0
        if self._readers and accepted:
            self._readers.poke()
        # A failed event is not out for good: a person may send it back, or the lane was another's.
        rejected = [r.event for r in refused]
        self._floors.settled([*accepted, *rejected], [*unknown, *rejected])
        return changed

    async def suspect(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        fence = (self.sink, relay, list(tokens), list(tokens.values()))
        where = [e.position for e in events], [e.lane for e in events]
        await self._links.run(lambda link: link.execute(self._sql.suspect, *fence, *where, by))

    async def left(self, most: int, /) -> int:
        return await self._links.run(lambda link: link.fetchval(self._sql.left, self.sink, most))

    async def forget(self, older_than: timedelta, limit: int, /) -> int:
        return await self._links.run(
            lambda link: _deleted(link, self._sql.forget, self.sink, limit, older_than)
        )

    async def close(self) -> None:
        if self._ears is not None:
            await self._ears.close()
        await self._links.close()


def _count(status: str) -> int:
    """How many rows a command says it has changed."""
    return int(status.rpartition(" ")[2])


async def _deleted(link: Connection[Any], statement: str, *values: object) -> int:
    return _count(await link.execute(statement, *values))


def _columns(refused: Sequence[RefusedEvent]) -> tuple[list[Any], ...]:
    return (
        [r.event.position for r in refused],
        [r.event.lane for r in refused],
        [r.wait for r in refused],
        [r.reason for r in refused],
    )

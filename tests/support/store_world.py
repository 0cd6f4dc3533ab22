"""A store with producers, relays and a sink, for random histories that check every promise.

Every step checks what it changed against what it may change; see the guarantees in the docs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID, uuid4

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from outrider import DomainEvent, Outbox
from outrider.admin.filters import EventFilter
from outrider.admin.repair import OutboxRepair
from outrider.lanes import LANES, aggregate_key
from outrider.outcomes import ClaimedEvent, RefusedEvent
from outrider.ports import RelayStore
from outrider.recording.rows import insert, row_of
from outrider.store.postgres.scan_start import ScanStart
from outrider.store.postgres.store import PostgresOutboxStore
from outrider.store.sqlite.store import SqliteOutboxStore
from outrider.testing.memory_store import MemoryOutboxStore

Rows = Mapping[UUID, Mapping[str, Any]]
End = Literal["commit", "rollback"]
Repair = Literal["retry", "discard"]
Outcome = Literal["accepted", "refused", "lost", "arrived"]
"""The last two look the same to a relay: the event, or its acknowledgement, was lost."""

LEASE: Final = timedelta(hours=1)
PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)
WINDOW: Final = 4
outbox = Outbox(wake_up=False)
table, lanes = outbox.tables.outbox, outbox.tables.lanes


def _lane(aggregate: int) -> int:
    return aggregate_key("default", "thing", str(aggregate)) % LANES


FIRST: Final = 1
AGGREGATES: Final = (
    FIRST,
    next(n for n in range(2, 10_000) if _lane(n) == _lane(FIRST)),
    next(n for n in range(2, 10_000) if _lane(n) != _lane(FIRST)),
)
"""Two aggregates of one lane, and one of another lane."""


def event_of(aggregate: int) -> DomainEvent:
    return DomainEvent("thing.happened", "thing", aggregate, {})


@dataclass(eq=False)
class Relay:
    """What a relay knows; `tokens` are those of its current batch."""

    store: RelayStore
    id: UUID = field(default_factory=uuid4)
    lanes: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    hand: list[ClaimedEvent] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    fresh: bool = False

    def having(self, *wanted: Outcome) -> list[ClaimedEvent]:
        pairs = zip(self.hand, self.outcomes, strict=True)
        return [event for event, outcome in pairs if outcome in wanted]


@dataclass(eq=False)
class Sink:
    """Takes events, and checks their order and the number of duplicates."""

    seen: Counter[UUID] = field(default_factory=Counter)
    allowed: int = 0
    """How many duplicates are allowed, after what has happened."""

    def take(self, event_id: UUID, older: set[UUID]) -> None:
        if event_id not in self.seen:
            assert older <= self.seen.keys(), "overtakes an event of its aggregate"
        self.seen[event_id] += 1
        assert self.seen.total() - len(self.seen) <= self.allowed, "too many duplicates"


class World(ABC):
    """The parts that do not depend on the kind of store."""

    commits_late = False
    """Whether other transactions can commit between a transaction's INSERT and its COMMIT."""

    def __init__(self, *, park: bool) -> None:
        self.park, self.now = park, 100.0
        self.sink = Sink()
        self.committed: dict[UUID, int] = {}
        self.forgotten: set[UUID] = set()
        self.out_of_order: set[UUID] = set()
        """Failed or discarded events; later events of the aggregate do not wait for them."""
        self.open: dict[int, tuple[AsyncConnection, UUID]] = {}
        self.relays = [self._relay(), self._relay()]

    @abstractmethod
    def _relay(self) -> Relay: ...
    @abstractmethod
    async def rows(self) -> Rows: ...
    @abstractmethod
    async def _held(self, relay: Relay) -> set[int]:
        """The lanes for which the relay's tokens are still valid in the store."""

    @abstractmethod
    async def _record(
        self, kept: list[DomainEvent], undone: list[DomainEvent], end: End
    ) -> None: ...
    @abstractmethod
    async def _expire(self) -> None: ...
    @abstractmethod
    async def end_waits(self) -> None: ...
    @abstractmethod
    async def _age(self) -> None:
        """Make all rows old."""

    @abstractmethod
    async def _repair(self, action: Repair) -> int: ...

    async def begin_late(self, aggregate: int) -> None:
        raise NotImplementedError

    async def end_late(self, aggregate: int, *, commits: bool) -> None:
        raise NotImplementedError

    async def record(self, kept: list[int], undone: list[int], end: End) -> None:
        """Record events; `undone` in a savepoint that is rolled back."""
        events = [event_of(aggregate) for aggregate in kept]
        await self._record(events, [event_of(aggregate) for aggregate in undone], end)
        if end == "commit":
            self.committed |= {e.event_id: a for e, a in zip(events, kept, strict=True)}

    async def lease(self, relay: Relay) -> None:
        lease = await relay.store.lease(relay.id, "tester", LEASE)
        for lane, token in lease.lanes.items():
            assert token >= relay.lanes.get(lane, 0)
        relay.lanes, relay.fresh = dict(lease.lanes), True
        if lease.surplus and not relay.hand:
            await relay.store.release(relay.id, lease.surplus)
            relay.lanes = {n: t for n, t in relay.lanes.items() if n not in lease.surplus}

    async def claim(self, relay: Relay, limit: int) -> None:
        relay.tokens = dict(relay.lanes)
        relay.hand = await relay.store.claim(relay.lanes, limit)
        relay.outcomes, relay.fresh = [], False
        rows = await self.rows()
        mine = [event.envelope.event_id for event in relay.hand]
        for key in {event.aggregate_key for event in relay.hand}:
            same = [id for id, row in rows.items() if row["aggregate_key"] == key]
            oldest = [id for id in same if rows[id]["status"] == "pending"]
            taken = [id for id in mine if id in same]
            assert taken == oldest[: len(taken)], "a batch has the oldest of each aggregate"
            assert not self.park or not any(rows[id]["status"] == "failed" for id in same)

    async def publish(self, relay: Relay, wanted: Callable[[], Outcome]) -> None:
        """For every aggregate the accepted events are a prefix, as publishers promise."""
        rows = await self.rows()
        order = {id: row["position"] for id, row in rows.items()}
        stopped: set[int] = set()
        for event in relay.hand:
            outcome: Outcome = "lost" if event.aggregate_key in stopped else wanted()
            relay.outcomes.append(outcome)
            self.sink.allowed += outcome == "arrived"
            if outcome != "accepted":
                stopped.add(event.aggregate_key)
            if outcome in ("accepted", "arrived"):
                aggregate = int(event.envelope.aggregate_id)
                older = {
                    id
                    for id, other in self.committed.items()
                    if other == aggregate and order.get(id, 0) < event.position
                }
                self.sink.take(event.envelope.event_id, older - self.out_of_order - self.forgotten)

    async def settle(self, relay: Relay, wait: timedelta) -> None:
        accepted, refused = relay.having("accepted"), relay.having("refused")
        most = 1 if self.park else 2  # so that a parked event is found often
        verdicts = [
            RefusedEvent(e, "no", None if e.retry_count + 1 >= most else wait) for e in refused
        ]
        before, held = await self.rows(), await self._held(relay)
        changed = await relay.store.settle(
            relay.id, relay.tokens, accepted, verdicts, relay.having("lost", "arrived")
        )
        after = await self.rows()
        may = {e.envelope.event_id for e in [*accepted, *refused] if e.lane in held}
        may = {id for id in may if id in before and before[id]["status"] == "pending"}
        self._only(before, after, may)
        assert changed == len(may)
        assert all(after[id] != before[id] for id in may)
        for verdict in verdicts:
            if (id := verdict.event.envelope.event_id) in may and verdict.wait is None:
                assert after[id]["status"] == "failed"
                if not self.park:
                    self.out_of_order.add(id)
        relay.hand, relay.outcomes, relay.tokens = [], [], {}

    async def adjust_crash_count(self, relay: Relay) -> None:
        before, held = await self.rows(), await self._held(relay)
        await relay.store.adjust_crash_count(relay.id, relay.tokens, relay.hand)
        await relay.store.adjust_crash_count(relay.id, relay.tokens, relay.hand, -1)
        await relay.store.adjust_crash_count(relay.id, relay.tokens, relay.hand)
        may = {e.envelope.event_id for e in relay.hand if e.lane in held}
        self._only(before, await self.rows(), may)

    def _only(self, before: Rows, after: Rows, may: set[UUID]) -> None:
        changed = {id for id, row in before.items() if after.get(id) != row}
        assert changed <= may, "a row was changed by somebody who must not"
        assert after.keys() == before.keys()

    async def expire(self) -> None:
        """Let the leases of all relays run out, of dead and of living ones."""
        self.sink.allowed += WINDOW * len(self.relays)
        await self._expire()

    async def crash(self, number: int) -> None:
        relay = self.relays[number]
        self.sink.allowed += len(relay.hand)
        await relay.store.close()
        self.relays[number] = self._relay()

    async def forget(self, limit: int) -> None:
        before = await self.rows()
        await self._age()
        removed = await self.relays[0].store.delete_published(timedelta(days=1), limit)
        gone = before.keys() - (await self.rows()).keys()
        assert len(gone) == removed <= limit
        assert {before[id]["status"] for id in gone} <= {"published"}
        self.forgotten |= gone

    async def help(self, action: Repair) -> None:
        failed = {id for id, row in (await self.rows()).items() if row["status"] == "failed"}
        assert await self._repair(action) == len(failed)
        if action == "discard":
            self.out_of_order |= failed

    async def check(self) -> None:
        rows = await self.rows()
        assert rows.keys() == self.committed.keys() - self.forgotten, "event if and only if commit"
        published = {id for id, row in rows.items() if row["status"] == "published"}
        assert published | self.forgotten <= self.sink.seen.keys(), "published, and not delivered"

    async def drain(self) -> None:
        """End all faults: everything reaches the sink; parked events are released by hand."""
        for aggregate in list(self.open):
            await self.end_late(aggregate, commits=True)
        await self.expire()
        last = self._relay()
        self.relays.append(last)
        for relay in self.relays:
            await relay.store.release(relay.id, None)
        left: set[str] = {"pending"}
        for _ in range(5):
            await self.end_waits()
            if self.park:
                await self.help("retry")
            await self.lease(last)
            self.now += 3  # after that time the scan starts from the beginning again
            await self.claim(last, 100)
            await self.publish(last, lambda: "accepted")
            await self.settle(last, timedelta(0))
            left = {row["status"] for row in (await self.rows()).values()}
            if not left & {"pending"}:
                break
        await self.check()
        assert "pending" not in left, "not everything drains"
        assert self.committed.keys() <= self.sink.seen.keys() | self.out_of_order

    async def close(self) -> None:
        for relay in self.relays:
            await relay.store.close()


class SqlWorld(World):
    """A store on PostgreSQL or SQLite; closing it empties the tables."""

    def __init__(self, engine: AsyncEngine, *, park: bool) -> None:
        self._engine, self.commits_late = engine, engine.dialect.name == "postgresql"
        super().__init__(park=park)

    def _relay(self) -> Relay:
        if self.commits_late:
            floors = ScanStart(lambda: self.now)
            return Relay(PostgresOutboxStore(self._engine, park=self.park, scan_start=floors))
        return Relay(SqliteOutboxStore(self._engine, park=self.park))

    async def rows(self) -> Rows:
        async with self._engine.connect() as connection:
            found = await connection.execute(select(table).order_by(table.c.position))
            return {row["id"]: row for row in found.mappings()}

    async def _held(self, relay: Relay) -> set[int]:
        query = select(lanes.c.lane, lanes.c.token).where(lanes.c.owner == relay.id)
        async with self._engine.connect() as connection:
            right = {row.lane: row.token for row in await connection.execute(query)}
        return {lane for lane, token in relay.tokens.items() if right.get(lane) == token}

    async def _execute(self, *statements: Any) -> None:
        async with self._engine.begin() as connection:
            for statement in statements:
                await connection.execute(statement)

    async def _record(self, kept: list[DomainEvent], undone: list[DomainEvent], end: End) -> None:
        async with AsyncSession(self._engine) as session, session.begin() as transaction:
            outbox.record(session, *kept)
            async with session.begin_nested() as savepoint:
                outbox.record(session, *undone)
                await savepoint.rollback()
            if end == "rollback":
                await transaction.rollback()

    async def begin_late(self, aggregate: int) -> None:
        event = event_of(aggregate)
        connection = await self._engine.connect()
        rows = [row_of(event.to_envelope())]
        await connection.run_sync(lambda sync: insert(sync, outbox.tables.names, rows))
        self.open[aggregate] = connection, event.event_id

    async def end_late(self, aggregate: int, *, commits: bool) -> None:
        connection, event_id = self.open.pop(aggregate)
        await (connection.commit() if commits else connection.rollback())
        await connection.close()
        if commits:
            self.committed[event_id] = aggregate

    async def _expire(self) -> None:
        await self._execute(
            update(lanes).values(expires_at=PAST),
            update(outbox.tables.relays).values(expires_at=PAST),
        )

    async def end_waits(self) -> None:
        waiting = update(table).where(table.c.next_retry_at.is_not(None))
        await self._execute(waiting.values(next_retry_at=PAST))

    async def _age(self) -> None:
        published = update(table).where(table.c.published_at.is_not(None))
        await self._execute(
            update(table).values(created_at=PAST), published.values(published_at=PAST)
        )

    async def _repair(self, action: Repair) -> int:
        changed = getattr(OutboxRepair(self._engine), action)(EventFilter(status="failed"))
        return int(await changed)

    async def close(self) -> None:
        for connection, _ in self.open.values():
            await connection.close()
        await super().close()
        await self._execute(
            table.delete(),
            update(lanes).values(owner=None, expires_at=None),
            outbox.tables.relays.delete(),
            outbox.tables.actions.delete(),
        )


class MemoryWorld(World):
    """The store in memory, which has neither transactions nor repairs by hand."""

    def __init__(self, *, park: bool) -> None:
        self._time = datetime(2026, 1, 1, tzinfo=UTC)
        self._outbox = MemoryOutboxStore(park=park, clock=lambda: self._time)
        super().__init__(park=park)

    def _relay(self) -> Relay:
        return Relay(self._outbox.of_sink("default", park=self.park))

    async def rows(self) -> Rows:
        return {
            row.event.id: {**vars(row), "aggregate_key": row.event.aggregate_key}
            for row in self._outbox.rows
        }

    async def _held(self, relay: Relay) -> set[int]:
        right = self._outbox._own.tokens(relay.id)
        return {lane for lane, token in relay.tokens.items() if right.get(lane) == token}

    async def _record(self, kept: list[DomainEvent], _undone: list[DomainEvent], end: End) -> None:
        if end == "commit":
            self._outbox.record(*kept)

    async def _expire(self) -> None:
        self._time += 2 * LEASE

    async def end_waits(self) -> None:
        for row in self._outbox.rows:
            row.next_retry_at = None

    async def _age(self) -> None:
        for row in self._outbox.rows:
            row.created_at, row.published_at = PAST, row.published_at and PAST

    async def _repair(self, action: Repair) -> int:
        failed = [row for row in self._outbox.rows if row.status == "failed"]
        for row in failed:
            row.status, row.retry_count = "pending", 0
        return len(failed)

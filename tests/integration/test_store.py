"""What is particular to stores on PostgreSQL and SQLite; the rest is in the conformance suite."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from outrider import ConfigurationError, DatabaseUnavailable, DomainEvent, Outbox, SqlOutboxStore
from outrider.admin.filters import EventFilter
from outrider.admin.repair import OutboxRepair
from outrider.lanes import LANES, aggregate_key
from outrider.outcomes import RefusedEvent
from outrider.ports import RelayStore
from outrider.store.postgres.connections import ConnectionPool
from outrider.store.postgres.scan_start import ScanStart
from outrider.store.postgres.store import PostgresOutboxStore
from outrider.testing.services import Services
from tests.support.databases import create_database

LEASE = timedelta(seconds=30)
ALL = range(LANES)
outbox = Outbox(wake_up=False)
table = outbox.tables.outbox


@pytest.fixture
async def store(database: AsyncEngine) -> AsyncIterator[RelayStore]:
    made = SqlOutboxStore(database)
    await made.open(lambda _source: None)
    yield made
    await made.close()


async def record(engine: AsyncEngine, *aggregates: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        for aggregate in aggregates:
            outbox.record(session, DomainEvent("thing.happened", "thing", aggregate, {}))


async def change(engine: AsyncEngine, *positions: int, **values: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            update(table).where(table.c.position.in_(positions)).values(**values)
        )


async def column(engine: AsyncEngine, name: str) -> list[Any]:
    async with engine.connect() as connection:
        query = text(f"SELECT {name} FROM outbox ORDER BY position")  # noqa: S608
        return list((await connection.execute(query)).scalars())


async def expire(engine: AsyncEngine) -> None:
    """As if the relays had been silent for longer than their lease."""
    past = "2020-01-01 00:00:00+00"
    async with engine.begin() as connection:
        for name in ("outbox_lanes", "outbox_relays"):
            await connection.execute(text(f"UPDATE {name} SET expires_at = '{past}'"))  # noqa: S608


@pytest.mark.fault("R4")
async def test_stale_relay_changes_nothing(store: RelayStore, database: AsyncEngine) -> None:
    """Also if it settles at the very moment of the take-over: what is left is the heir's."""
    heir = SqlOutboxStore(database)
    await heir.open(lambda _source: None)
    for moment in range(20):
        zombie = uuid4()
        stale = await store.lease(zombie, "zombie", LEASE)
        await record(database, 1, 2, 3)
        claimed = await store.claim(ALL, 10)
        await expire(database)

        taking = asyncio.create_task(heir.lease(uuid4(), "heir", LEASE))
        await asyncio.wait({taking}, timeout=moment / 2000 if moment < 19 else None)
        too_late = taking.done()
        changed = await store.settle(zombie, stale.lanes, claimed, [], [])
        taken = await taking
        late = await store.settle(zombie, stale.lanes, claimed, [], [])

        left = await heir.claim(ALL, 10)
        assert (len(left), late) == (3 - changed, 0)
        assert not (too_late and changed)
        assert {event.lane for event in left} <= taken.lanes.keys()
        await expire(database)
        async with database.begin() as connection:
            await connection.execute(table.delete())
    await heir.close()


async def test_only_old_published_events_are_deleted_a_few_at_a_time(
    store: RelayStore, database: AsyncEngine
) -> None:
    """By the database's clock, from the oldest delivery on."""
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, *range(8))
    claimed = await store.claim(ALL, 6)
    failed = RefusedEvent(claimed[5], "no", None)
    await store.settle(relay, lease.lanes, claimed[:5], [failed], [])
    last_week = datetime.now(UTC) - timedelta(days=8)
    await change(database, 1, 2, 3, published_at=last_week)
    await change(database, 6, 7, created_at=last_week, occurred_at=last_week)

    assert await store.delete_published(timedelta(days=9), 10) == 0
    assert await store.delete_published(timedelta(days=7), 2) == 2
    assert await store.delete_published(timedelta(days=7), 2) == 1
    assert await store.delete_published(timedelta(days=7), 2) == 0
    assert await column(database, "position") == [4, 5, 6, 7, 8]


@pytest.mark.fault("E16")
@pytest.mark.parametrize("given_up_by", ["cancellation", "deadline"])
async def test_connection_of_a_call_that_was_given_up_is_never_used_again(
    postgres: AsyncEngine, given_up_by: str
) -> None:
    """Its reply may still be on its way, and would be taken for the answer to the next call.

    And the server stops working on it: given up every ten seconds, such calls would pile up.
    """
    links = ConnectionPool(postgres, timedelta(minutes=1))
    first = await links.run(backend)

    if given_up_by == "cancellation":
        call = asyncio.create_task(links.run(lambda link: link.execute("SELECT pg_sleep(60)")))
        await until_sleepers(postgres, 1)
        call.cancel()
        await asyncio.wait({call})
    else:
        links._deadline = 0.05
        with pytest.raises(DatabaseUnavailable):
            await links.run(lambda link: link.execute("SELECT pg_sleep(60)"))
        links._deadline = 60.0

    assert await links.run(backend) != first
    await until_sleepers(postgres, 0)
    await links.close()


async def backend(link: Any) -> int:
    return int(await link.fetchval("SELECT pg_backend_pid()"))


async def until_sleepers(engine: AsyncEngine, count: int) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    async with asyncio.timeout(30), engine.connect() as connection:
        while await connection.scalar(text(query)) != count:  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(0.01)


@pytest.mark.fault("T1")
@pytest.mark.parametrize("wrong_by", [3600, -3600])
async def test_leases_follow_the_clock_of_the_database(
    postgres: AsyncEngine, wrong_by: int
) -> None:
    """A relay whose own clock is fast takes nothing early; one that is slow keeps what it has."""
    store = SqlOutboxStore(postgres)
    await store.open(lambda _source: None)
    if wrong_by > 0:
        await store.lease(uuid4(), "right", timedelta(minutes=20))

    url = postgres.url.render_as_string(hide_password=False)
    script = Path(__file__).parents[1] / "support/processes/wrong_clock_process.py"
    relay = await asyncio.create_subprocess_exec(
        sys.executable, script, url, str(wrong_by), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await relay.communicate()
    heir = await store.lease(uuid4(), "heir", LEASE)

    assert int(said) == (0 if wrong_by > 0 else LANES)
    assert not heir.lanes
    await store.close()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def postgres(services: Services) -> AsyncIterator[AsyncEngine]:
    url = create_database(services).replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(outbox.tables.metadata.create_all)
    yield engine
    await engine.dispose()


@pytest.mark.fault("D10")
async def past_a_late_commit(postgres: AsyncEngine, clock: Clock) -> PostgresOutboxStore:
    """The hole of a floor: 1 is seen when 2 and 3, of its lane, are settled and the floor above."""
    relay, other = uuid4(), same_lane_as(1)
    store = PostgresOutboxStore(postgres, scan_start=ScanStart(clock, quick=0))
    await store.open(lambda _source: None)
    lease = await store.lease(relay, "one", LEASE)
    await record(postgres, 1, other, other)
    await change(postgres, 1, sink="not committed yet")
    await store.settle(relay, lease.lanes, await store.claim(ALL, 10), [], [])
    for _ in range(2):  # the floor follows after half a second
        clock.now += 0.6
        assert await store.claim(ALL, 10) == []
    await change(postgres, 1, sink="default")
    return store


async def test_event_that_was_committed_late_comes_before_what_followed_it(
    postgres: AsyncEngine,
) -> None:
    store = await past_a_late_commit(postgres, Clock())
    await record(postgres, 1)

    claimed = await store.claim(ALL, 10)

    assert [event.position for event in claimed] == [1, 4]
    await store.close()


async def test_event_that_was_committed_late_is_found_although_none_follows(
    postgres: AsyncEngine,
) -> None:
    clock = Clock()
    store = await past_a_late_commit(postgres, clock)
    clock.now += 10

    claimed = await store.claim(ALL, 10)

    assert [event.position for event in claimed] == [1]
    await store.close()


@pytest.mark.fault("B18")
async def test_events_that_were_sent_back_come_from_the_first_on(postgres: AsyncEngine) -> None:
    """A replay makes published events pending again; some of them lie above the floor."""
    clock, relay = Clock(), uuid4()
    store = PostgresOutboxStore(postgres, scan_start=ScanStart(clock, quick=0))
    await store.open(lambda _source: None)
    lease = await store.lease(relay, "one", LEASE)
    for _ in range(2):
        await record(postgres, 1, 1)
        await store.settle(relay, lease.lanes, await store.claim(ALL, 10), [], [])
        for _ in range(2):  # the floor follows the first two, not yet the others
            clock.now += 0.3
            assert await store.claim(ALL, 10) == []

    await change(postgres, 1, 2, 3, 4, status="pending", published_at=None)
    claimed = await store.claim(ALL, 10)

    assert [event.position for event in claimed] == [1, 2, 3, 4]
    await store.close()


async def test_refused_event_holds_back_its_aggregate_and_no_other(postgres: AsyncEngine) -> None:
    """Also when its whole lane is settled far above it."""
    clock, relay = Clock(), uuid4()
    store = PostgresOutboxStore(postgres, scan_start=ScanStart(clock, quick=0))
    await store.open(lambda _source: None)
    lease = await store.lease(relay, "one", LEASE)
    refused, other = 1, same_lane_as(1)
    await record(postgres, refused, other)
    claimed = await store.claim(ALL, 10)
    waits = [RefusedEvent(claimed[0], "queue is full", timedelta(hours=1))]
    await store.settle(relay, lease.lanes, claimed[1:], waits, [])

    for _ in range(5):
        await record(postgres, refused, other)
        clock.now += 0.6
        batch = await store.claim(ALL, 10)
        assert [event.envelope.aggregate_id for event in batch] == [str(other)]
        await store.settle(relay, lease.lanes, batch, [], [])

    await change(postgres, 1, next_retry_at=None)
    clock.now += 5
    assert [event.position for event in await store.claim(ALL, 10)] == [1, 3, 5, 7, 9, 11]
    await store.close()


def same_lane_as(aggregate: int) -> int:
    def lane(number: int) -> int:
        return aggregate_key("default", "thing", str(number)) % LANES

    return next(n for n in range(2, 10_000) if lane(n) == lane(aggregate))


async def test_missing_tables_are_a_configuration_error(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await connection.run_sync(outbox.tables.metadata.drop_all)
    store = SqlOutboxStore(database)

    with pytest.raises(ConfigurationError, match="outrider schema apply"):
        await store.open(lambda _source: None)
    await store.close()


async def test_unreachable_database_is_something_to_wait_for() -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody:canary@127.0.0.1:1/nowhere")
    store = SqlOutboxStore(engine)

    with pytest.raises(DatabaseUnavailable) as caught:
        await store.open(lambda _source: None)

    assert "canary" not in str(caught.value)
    await store.close()


def test_in_memory_sqlite_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give it a file"):
        SqlOutboxStore(create_async_engine("sqlite+aiosqlite://"))


async def test_many_lanes_rows_are_made_once(store: RelayStore, database: AsyncEngine) -> None:
    await store.close()
    again = SqlOutboxStore(database)
    await again.open(lambda _source: None)

    async with database.connect() as connection:
        counted = await connection.scalar(text("SELECT count(*) FROM outbox_lanes"))

    assert counted == LANES
    await again.close()


async def test_event_that_a_person_sends_back_comes_before_what_was_parked_behind_it(
    postgres: AsyncEngine,
) -> None:
    """Also when its lane is settled far above it: 1 and 3 belong to one aggregate, 1 has failed."""
    clock, relay = Clock(), uuid4()
    store = PostgresOutboxStore(postgres, park=True, scan_start=ScanStart(clock, quick=0))
    await store.open(lambda _source: None)
    lease = await store.lease(relay, "one", LEASE)
    parked, other = 1, same_lane_as(1)
    await record(postgres, parked, other)
    first, second = await store.claim(ALL, 10)
    await store.settle(relay, lease.lanes, [], [RefusedEvent(first, "no", None)], [])
    await store.settle(relay, lease.lanes, [second], [], [])
    for _ in range(2):  # the floor follows after half a second
        clock.now += 0.6
        assert await store.claim(ALL, 10) == []

    await record(postgres, parked)
    await OutboxRepair(postgres).retry(EventFilter())
    claimed = await store.claim(ALL, 10)

    assert [event.position for event in claimed] == [1, 3]
    await store.close()

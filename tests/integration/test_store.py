"""What a store promises to relays, on PostgreSQL and on SQLite alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from outrider import ConfigurationError, DatabaseUnavailable, DomainEvent, Outbox, SqlOutbox
from outrider.ports import ClaimedEvent, OutboxStore, RefusedEvent
from outrider.sql.floors import Floors
from outrider.sql.postgres import PostgresOutbox
from outrider.sql.rows import LANES, aggregate_key
from outrider.testing.services import Services
from tests.integration.conftest import fresh_postgres

LEASE = timedelta(seconds=30)
ALL = range(LANES)
outbox = Outbox(wake_up=False)
table = outbox.tables.outbox


@pytest.fixture
async def store(database: AsyncEngine) -> AsyncIterator[OutboxStore]:
    made = SqlOutbox(database)
    await made.open(lambda _source: None)
    yield made
    await made.close()


async def record(engine: AsyncEngine, *aggregates: int, **values: Any) -> None:
    async with AsyncSession(engine) as session, session.begin():
        for aggregate in aggregates:
            outbox.record(session, DomainEvent("thing.happened", "thing", aggregate, {}))
    if values:
        async with engine.begin() as connection:
            await connection.execute(update(table).values(**values))


async def rows(engine: AsyncEngine, column: str) -> list[Any]:
    async with engine.connect() as connection:
        query = text(f"SELECT {column} FROM outbox ORDER BY position")  # noqa: S608
        return list((await connection.execute(query)).scalars())


async def expire(engine: AsyncEngine) -> None:
    """As if the relays had been silent for longer than their lease."""
    past = "2020-01-01 00:00:00+00"
    async with engine.begin() as connection:
        for name in ("outbox_lanes", "outbox_relays"):
            await connection.execute(text(f"UPDATE {name} SET expires_at = '{past}'"))  # noqa: S608


def aggregates(claimed: list[ClaimedEvent]) -> list[str]:
    return [event.envelope.aggregate_id for event in claimed]


async def test_first_relay_gets_all_lanes_and_the_second_half_of_them(
    store: OutboxStore,
) -> None:
    first, second = uuid4(), uuid4()

    alone = await store.lease(first, "first", LEASE)
    newcomer = await store.lease(second, "second", LEASE)
    shared = await store.lease(first, "first", LEASE)

    assert set(alone.lanes) == set(ALL)
    assert newcomer.lanes == {}
    assert len(shared.surplus) == LANES // 2
    await store.release(first, shared.surplus)
    assert len((await store.lease(second, "second", LEASE)).lanes) == LANES // 2
    assert not (await store.lease(first, "first", LEASE)).surplus


@pytest.mark.parametrize("count", [3, 5, 7])
async def test_any_number_of_relays_shares_all_lanes_evenly(store: OutboxStore, count: int) -> None:
    relays = [uuid4() for _ in range(count)]
    for _ in range(3):
        for relay in relays:
            lease = await store.lease(relay, "one", LEASE)
            await store.release(relay, lease.surplus)

    leases = [await store.lease(relay, "one", LEASE) for relay in relays]

    sizes = sorted(len(lease.lanes) for lease in leases)
    assert sum(sizes) == LANES
    assert sizes[-1] - sizes[0] <= 1
    assert len({lane for lease in leases for lane in lease.lanes}) == LANES


async def test_dead_relays_lanes_are_taken_with_a_new_token(
    store: OutboxStore, database: AsyncEngine
) -> None:
    dead = await store.lease(uuid4(), "dead", LEASE)
    await expire(database)

    heir = await store.lease(uuid4(), "heir", LEASE)

    assert heir.orphaned == set(ALL)
    assert all(heir.lanes[lane] > dead.lanes[lane] for lane in ALL)


async def test_stopped_relays_lanes_are_free_at_once_and_not_orphaned(store: OutboxStore) -> None:
    stopped = uuid4()
    await store.lease(stopped, "stopped", LEASE)
    await store.release(stopped, None)

    heir = await store.lease(uuid4(), "heir", LEASE)

    assert len(heir.lanes) == LANES
    assert not heir.orphaned


async def test_claim_gives_the_oldest_in_order_and_only_of_the_lanes_asked_for(
    store: OutboxStore, database: AsyncEngine
) -> None:
    await record(database, *range(20), *range(20))

    every = await store.claim(ALL, 100)
    some = await store.claim({every[0].lane}, 100)

    assert aggregates(every) == [str(n) for n in [*range(20), *range(20)]]
    assert {event.lane for event in some} == {every[0].lane}
    assert len(await store.claim(ALL, 7)) == 7


async def test_claimed_event_is_what_was_recorded(
    store: OutboxStore, database: AsyncEngine
) -> None:
    event = DomainEvent("thing.happened", "thing", "ü 1", {"n": 2**70, "text": "Käse"})
    async with AsyncSession(database) as session, session.begin():
        outbox.record(session, event)

    (claimed,) = await store.claim(ALL, 10)

    assert claimed.envelope == event.to_envelope()
    assert claimed.envelope.payload == event.payload
    assert (claimed.retry_count, claimed.crash_count, claimed.max_retries) == (0, 0, None)


async def test_settled_events_are_published_in_the_order_of_delivery(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, *range(5))

    for size in (3, 2):
        claimed = await store.claim(ALL, size)
        assert await store.settle(relay, lease.lanes, claimed, [], []) == size

    assert await rows(database, "status") == ["published"] * 5
    assert await rows(database, "delivery") == [1, 2, 3, 4, 5]
    assert await store.claim(ALL, 10) == []


async def test_stale_relay_changes_nothing(store: OutboxStore, database: AsyncEngine) -> None:
    zombie = uuid4()
    stale = await store.lease(zombie, "zombie", LEASE)
    await record(database, 1, 2, 3)
    claimed = await store.claim(ALL, 10)
    await expire(database)
    heir = await store.lease(uuid4(), "heir", LEASE)

    refused = [RefusedEvent(claimed[1], "no", None), RefusedEvent(claimed[2], "no", LEASE)]
    changed = await store.settle(zombie, stale.lanes, claimed[:1], refused, [])
    await store.suspect(zombie, stale.lanes, claimed)
    await store.release(zombie, set(ALL))
    renewed = await store.lease(zombie, "zombie", LEASE)

    assert (changed, renewed.lanes) == (0, {})
    assert await rows(database, "status") == ["pending"] * 3
    assert await rows(database, "retry_count") == [0] * 3
    assert await rows(database, "crash_count") == [0] * 3
    assert heir.lanes


async def test_right_owner_with_an_old_token_changes_nothing(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, 1)
    claimed = await store.claim(ALL, 10)
    old = {lane: token - 1 for lane, token in lease.lanes.items()}

    assert await store.settle(relay, old, claimed, [], []) == 0
    assert await rows(database, "status") == ["pending"]


async def test_refused_event_holds_back_its_aggregate_and_no_other(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, 1, 2, 1, 3)
    claimed = await store.claim(ALL, 10)

    refused = [RefusedEvent(claimed[0], "queue is full", timedelta(hours=1))]
    await store.settle(relay, lease.lanes, [], refused, claimed[1:])

    assert aggregates(await store.claim(ALL, 10)) == ["2", "3"]
    assert await rows(database, "retry_count") == [1, 0, 0, 0]
    assert (await rows(database, "last_error"))[0] == "queue is full"


async def test_batch_has_the_oldest_of_each_aggregate_at_the_very_moment_waits_end(
    store: OutboxStore, database: AsyncEngine
) -> None:
    """A moment that is not the same for all rows lets a second event overtake its first."""
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, *range(150), *range(150))
    claimed = await store.claim(ALL, 1000)
    first, second = claimed[:150], claimed[150:]
    waits = [RefusedEvent(e, "no", timedelta(milliseconds=2 * n)) for n, e in enumerate(first)]
    await store.settle(relay, lease.lanes, [], waits, second)

    delivered: set[int] = set()
    while len(delivered) < 300:
        batch = await store.claim(ALL, 1000)
        for event in batch:
            if event.position > 150:
                assert event.position - 150 in delivered, "the second event without its first"
            delivered.add(event.position)
        await store.settle(relay, lease.lanes, batch, [], [])


async def test_refused_event_comes_back_when_its_wait_is_over(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, 1, 1)
    claimed = await store.claim(ALL, 10)

    now = [RefusedEvent(claimed[0], "no", timedelta(0))]
    await store.settle(relay, lease.lanes, [], now, claimed[1:])

    again = await store.claim(ALL, 10)
    assert [event.retry_count for event in again] == [1, 0]


async def test_failed_event_lets_its_aggregate_go_on_or_parks_it(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay, parking = uuid4(), SqlOutbox(database, park=True)
    lease = await store.lease(relay, "one", LEASE)
    await record(database, 1, 1, 2)
    claimed = await store.claim(ALL, 10)
    await store.settle(relay, lease.lanes, [], [RefusedEvent(claimed[0], "no", None)], claimed[1:])
    await parking.open(lambda _source: None)

    assert await rows(database, "status") == ["failed", "pending", "pending"]
    assert aggregates(await store.claim(ALL, 10)) == ["1", "2"]
    assert aggregates(await parking.claim(ALL, 10)) == ["2"]
    await parking.close()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def hide(engine: AsyncEngine, position: int, *, hidden: bool) -> None:
    """As if the transaction of this row had not committed yet."""
    change = update(table).where(table.c.position == position)
    async with engine.begin() as connection:
        await connection.execute(change.values(sink="later" if hidden else "default"))


async def test_event_that_was_committed_late_comes_before_what_followed_it(
    services: Services,
) -> None:
    """The hole of a floor: 1 and 4 belong to one aggregate, 1 is seen when 2 and 3 are settled."""
    engine = create_async_engine(
        fresh_postgres(services).replace("postgresql", "postgresql+asyncpg", 1)
    )
    async with engine.begin() as connection:
        await connection.run_sync(outbox.tables.metadata.create_all)
    clock, relay = Clock(), uuid4()
    store = PostgresOutbox(engine, floors=Floors(clock))
    await store.open(lambda _source: None)
    lease = await store.lease(relay, "one", LEASE)
    late, other = 1, same_lane_as(1)
    await record(engine, late, other, other)
    await hide(engine, 1, hidden=True)
    await store.settle(relay, lease.lanes, await store.claim(ALL, 10), [], [])
    for _ in range(2):  # the floor follows after half a second
        clock.now += 0.6
        assert await store.claim(ALL, 10) == []

    await hide(engine, 1, hidden=False)
    await record(engine, late)
    first = await store.claim(ALL, 10)
    second = await store.claim(ALL, 10)

    assert first == []
    assert [event.position for event in second] == [1, 4]
    await store.close()
    await engine.dispose()


def same_lane_as(aggregate: int) -> int:
    def lane(number: int) -> int:
        return aggregate_key("default", "thing", str(number)) % LANES

    return next(n for n in range(2, 10_000) if lane(n) == lane(aggregate))


async def test_crashes_are_counted_before_the_attempt(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, 1, 2)
    claimed = await store.claim(ALL, 10)

    await store.suspect(relay, lease.lanes, claimed[:1])

    assert await rows(database, "crash_count") == [1, 0]


async def test_only_old_published_events_are_forgotten_a_few_at_a_time(
    store: OutboxStore, database: AsyncEngine
) -> None:
    relay = uuid4()
    lease = await store.lease(relay, "one", LEASE)
    await record(database, *range(6))
    claimed = await store.claim(ALL, 4)
    await store.settle(relay, lease.lanes, claimed[:3], [RefusedEvent(claimed[3], "no", None)], [])

    assert await store.forget(timedelta(days=1), 10) == 0
    assert await store.forget(timedelta(0), 2) == 2
    assert await store.forget(timedelta(0), 2) == 1
    assert await rows(database, "status") == ["failed", "pending", "pending"]


async def test_sinks_do_not_see_each_others_lanes_and_events(database: AsyncEngine) -> None:
    other = SqlOutbox(database, sink="other")
    await other.open(lambda _source: None)
    await record(database, 1, sink="other")
    mine = SqlOutbox(database)
    await mine.open(lambda _source: None)

    assert len((await mine.lease(uuid4(), "one", LEASE)).lanes) == LANES
    assert len((await other.lease(uuid4(), "two", LEASE)).lanes) == LANES
    assert await mine.claim(ALL, 10) == []
    assert len(await other.claim(ALL, 10)) == 1
    await mine.close()
    await other.close()


async def test_missing_tables_are_a_configuration_error(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await connection.run_sync(outbox.tables.metadata.drop_all)
    store = SqlOutbox(database)

    with pytest.raises(ConfigurationError, match="outrider schema check"):
        await store.open(lambda _source: None)
    await store.close()


async def test_unreachable_database_is_something_to_wait_for() -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody:canary@127.0.0.1:1/nowhere")
    store = SqlOutbox(engine)

    with pytest.raises(DatabaseUnavailable) as caught:
        await store.open(lambda _source: None)

    assert "canary" not in str(caught.value)
    await store.close()


def test_in_memory_sqlite_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give it a file"):
        SqlOutbox(create_async_engine("sqlite+aiosqlite://"))


async def test_many_lanes_rows_are_made_once(store: OutboxStore, database: AsyncEngine) -> None:
    await store.close()
    again = SqlOutbox(database)
    await again.open(lambda _source: None)

    async with database.connect() as connection:
        counted = await connection.scalar(text("SELECT count(*) FROM outbox_lanes"))

    assert counted == LANES
    await again.close()

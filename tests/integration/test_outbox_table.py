"""The table and its claims on PostgreSQL, as the requirements word them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from outrider import DomainEvent, Outbox, OutboxNames, OutboxTables, SqlOutboxStore, create_all
from outrider.lanes import LANES
from outrider.store.postgres.claim_sql import CLAIM
from outrider.testing.services import Services
from tests.support.databases import create_database

LEASE = timedelta(seconds=30)
NAMES = OutboxNames(table="outbox_events")


@pytest.fixture
async def migrated(services: Services) -> AsyncIterator[AsyncEngine]:
    """A database that the migrations made, with the table name of the messaging service."""
    url = create_database(services).replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    await create_all(engine, NAMES)
    yield engine
    await engine.dispose()


async def rows(engine: AsyncEngine, sql: str) -> list[tuple[object, ...]]:
    async with engine.connect() as connection:
        return [tuple(row) for row in (await connection.execute(text(sql))).all()]


async def test_columns_of_the_outbox_have_their_types(migrated: AsyncEngine) -> None:
    found = await rows(
        migrated,
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
        "WHERE table_name = 'outbox_events'",
    )

    columns = {name: (kind, nullable) for name, kind, nullable in found}
    expected = {
        "id": ("uuid", "NO"),
        "event_type": ("text", "NO"),
        "aggregate_type": ("text", "NO"),
        "aggregate_id": ("text", "NO"),
        "payload": ("jsonb", "NO"),
        "metadata": ("jsonb", "NO"),
        "occurred_at": ("timestamp with time zone", "NO"),
        "created_at": ("timestamp with time zone", "NO"),
        "status": ("text", "NO"),
        "retry_count": ("integer", "NO"),
        "max_retries": ("integer", "YES"),
        "next_retry_at": ("timestamp with time zone", "YES"),
        "published_at": ("timestamp with time zone", "YES"),
        "last_error": ("text", "YES"),
    }
    assert {name: columns.get(name) for name in expected} == expected


async def test_defaults_and_keys_of_the_outbox_are_those_of_a_new_event(
    migrated: AsyncEngine,
) -> None:
    async with migrated.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO outbox_events (id, lane, aggregate_key, event_type, aggregate_type, "
                "aggregate_id, payload, occurred_at) VALUES (gen_random_uuid(), 1, 1, 'a.b', 'a', "
                "'1', '{}', now())"
            )
        )

    state = "SELECT status, retry_count, published_at, last_error FROM outbox_events"
    assert await rows(migrated, state) == [("pending", 0, None, None)]
    unique = await rows(
        migrated,
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = 'outbox_events'::regclass AND contype IN ('p', 'u')",
    )
    assert sorted(unique) == [('PRIMARY KEY ("position")',), ("UNIQUE (id, sink)",)]


async def test_poll_uses_the_partial_index_of_what_is_pending(migrated: AsyncEngine) -> None:
    indexes = await rows(
        migrated, "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'outbox_events'"
    )
    pending = {
        str(name)
        for name, definition in indexes
        if "(sink, lane, \"position\") WHERE (status = 'pending'" in str(definition)
    }
    claim = CLAIM.format(outbox=NAMES.table, parked="")
    for number, value in {
        "$1": "'default'",
        "$2": "'{1,2,3}'",
        "$3": "'{0,0,0}'",
        "$4": "100",
        "$5": "100",
    }.items():
        claim = claim.replace(number, value)
    async with migrated.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO outbox_events (id, lane, aggregate_key, event_type, aggregate_type, "
                "aggregate_id, payload, occurred_at, status) SELECT gen_random_uuid(), n % 64, n, "
                "'a.b', 'a', n::text, '{}', now(), CASE WHEN n % 100 = 0 THEN 'pending' ELSE "
                "'published' END FROM generate_series(1, 5000) AS n"
            )
        )
    async with migrated.connect() as connection:
        await connection.execute(text("ANALYZE outbox_events"))
        explained = (await connection.exec_driver_sql(f"EXPLAIN {claim}")).scalars().all()

    (index,) = pending
    assert any(f"using {index} on outbox_events" in line for line in explained)


async def test_oldest_pending_events_are_claimed_first(database: AsyncEngine) -> None:
    store, outbox = SqlOutboxStore(database), Outbox(wake_up=False)
    events = [DomainEvent("a.b", "a", number, {}) for number in range(30)]
    async with AsyncSession(database) as session, session.begin():
        outbox.record(session, *events)
    await store.open(lambda _: None)

    claimed = await store.claim(range(LANES), 5)

    assert [each.envelope.event_id for each in claimed] == [event.event_id for event in events[:5]]
    await store.close()


async def test_relay_takes_free_lanes_and_skips_those_that_somebody_has_locked(
    migrated: AsyncEngine,
) -> None:
    store = SqlOutboxStore(migrated, OutboxTables(NAMES), timeout=timedelta(seconds=5))
    await store.open(lambda _: None)
    first = uuid4()
    await store.lease(first, "first", LEASE)
    await store.release(first, None)
    async with migrated.begin() as somebody:
        await somebody.execute(text("SELECT 1 FROM outbox_events_lanes WHERE lane < 20 FOR UPDATE"))

        taken = await store.lease(uuid4(), "second", LEASE)  # waits for nobody

    assert set(taken.lanes) == set(range(20, LANES))
    await store.close()


async def test_relays_that_start_together_never_share_a_lane(migrated: AsyncEngine) -> None:
    stores = [SqlOutboxStore(migrated, OutboxTables(NAMES)) for _ in range(4)]
    for store in stores:
        await store.open(lambda _: None)
    relays = [uuid4() for _ in stores]

    for _ in range(4):
        leases = await asyncio.gather(
            *(
                store.lease(relay, "relay", LEASE)
                for store, relay in zip(stores, relays, strict=True)
            )
        )
        held = [lane for lease in leases for lane in lease.lanes]
        assert len(held) == len(set(held))

    for store in stores:
        await store.close()

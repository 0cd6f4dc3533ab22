"""Many relays, one aggregate that gets everything, tables that must not swell, no files left."""

from __future__ import annotations

import random
import resource
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import (
    DomainEvent,
    InMemoryEventBus,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
)
from outrider.store.engines import open_engine
from outrider.store.postgres import statements as postgres_sql
from outrider.store.schema.names import OutboxNames
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.flow import flowing
from tests.support.limits import FULL, SEED
from tests.support.until import until

RELAYS = 20 if FULL else 6
ROUNDS, EACH = (60, 1000) if FULL else (5, 200)
HOT = 20_000 if FULL else 2_000
OFTEN = RelayConfig(poll_interval=timedelta(milliseconds=100), lease=timedelta(seconds=2))

CALM = RelayConfig(poll_interval=timedelta(milliseconds=100), lease=timedelta(seconds=60))

pytestmark = pytest.mark.faults


async def record(engine: AsyncEngine, *aggregates: str) -> None:
    async with engine.begin() as connection:
        events = [
            DomainEvent("thing.changed", "thing", a, {"n": n}) for n, a in enumerate(aggregates)
        ]
        Outbox(wake_up=False).record(connection, *events)


@pytest.mark.fault("R6", "R11")
async def test_relays_that_come_and_go_leave_no_lane_behind(services: Services) -> None:
    """All of them have the same name, as clones of one machine would."""
    chance, engine = random.Random(SEED), open_engine(create_database(services), pool_size=40)
    await create_all(engine)
    bus, living, recorded = InMemoryEventBus(), list[OutboxRelay](), 0
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)

        for _ in range(3 * RELAYS):
            if len(living) > 1 and chance.random() < len(living) / RELAYS:
                await living.pop(chance.randrange(len(living))).stop()
            else:
                relay = OutboxRelay(SqlOutboxStore(engine), bus, OFTEN)
                await stack.enter_async_context(relay)
                living.append(relay)
            await record(engine, *(f"a{chance.randrange(50)}" for _ in range(20)))
            recorded += 20

        def are_even() -> bool:
            shares = [len(relay._lanes.tokens) for relay in living]
            return sum(shares) == 64 and max(shares) - min(shares) <= 1

        await until(are_even, f"{len(living)} relays have all lanes, evenly")

        def have_arrived() -> bool:
            return len({event.event_id for event in bus.published_events}) == recorded

        await until(have_arrived, "everything has arrived")


@pytest.mark.fault("Z4")
async def test_aggregate_that_gets_nearly_everything_holds_up_no_other(services: Services) -> None:
    engine, bus = open_engine(create_database(services)), InMemoryEventBus()
    await create_all(engine)
    await record(engine, *["hot"] * HOT)
    await record(engine, *(f"a{n}" for n in range(500)))

    async with OutboxRelay(SqlOutboxStore(engine), bus, CALM):
        await until(lambda: bus.event_count == HOT + 500, "everything has arrived")
    async with engine.connect() as connection:
        other = text(
            "SELECT aggregate_id FROM outbox WHERE lane <> "
            "(SELECT max(lane) FROM outbox WHERE aggregate_id = 'hot')"
        )
        elsewhere = set((await connection.execute(other)).scalars())
    await engine.dispose()

    arrived = [e.aggregate_id for e in bus.published_events]
    last = max(n for n, aggregate in enumerate(arrived) if aggregate in elsewhere)
    assert last < len(arrived) - HOT // 4, "other lanes did not wait for the end"
    assert [e.payload["n"] for e in bus.events_for_aggregate("hot")] == list(range(HOT))


@pytest.mark.fault("Z2", "Z3")
async def test_table_does_not_swell_while_events_come_and_are_forgotten(
    services: Services,
) -> None:
    # given
    engine, bus = open_engine(create_database(services)), InMemoryEventBus()
    await create_all(engine)
    store, sizes = SqlOutboxStore(engine), list[int]()
    await store.open(lambda _: None)
    async with engine.begin() as connection:
        waiting = DomainEvent("thing.changed", "thing", "stays", {})
        Outbox(wake_up=False, routes={"*": ("elsewhere",)}).record(connection, waiting)

    # when
    for number in range(ROUNDS):
        async with OutboxRelay(SqlOutboxStore(engine), bus, CALM):
            await record(engine, *(f"a{n % 100}" for n in range(EACH)))
            await until(lambda: bus.event_count == EACH * (number + 1), "it is through")  # noqa: B023
        while await store.delete_published(timedelta(0), 500):
            pass
        sizes.append(await vacuumed_size(engine))
    await store.close()

    # then
    async with engine.connect() as connection:
        left = await connection.scalar(text("SELECT count(*) FROM outbox"))
    assert left == 1, "only what waits is left"
    assert max(sizes) <= 3 * sizes[2], f"bytes after each round: {sizes}"
    await engine.dispose()


async def vacuumed_size(engine: AsyncEngine) -> int:
    """As autovacuum would leave it."""
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with alone.connect() as connection:
        await connection.execute(text("VACUUM outbox"))
        return int(await connection.scalar(text("SELECT pg_total_relation_size('outbox')")) or 0)


@pytest.mark.fault("R10")
async def test_relay_without_file_descriptors_waits_and_goes_on(
    services: Services, tmp_path: Path
) -> None:
    settings = {"OUTBOX_LEASE": "5", "OUTBOX_POLL_INTERVAL_MS": "200"}
    async with flowing(
        create_database(services), services.rabbitmq.url, tmp_path, **settings
    ) as flow:
        # given
        await flow.reader.start()
        (relay,) = await flow.start_relays(1)
        await flow.writers.record_many(1)
        await until(lambda: flow.reader.has(flow.writers.committed), "they arrive")

        # when
        soft, hard = resource.prlimit(relay.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (3, hard))
        await flow.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await flow.engine.dispose()
        await flow.writers.record_many(1)
        await until(lambda: "database unavailable" in relay.text, "it says so")

        # then
        resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (soft, hard))
        verdict = await flow.verdict()
        assert verdict.holds(duplicates=100), str(verdict)


@pytest.mark.fault("T3")
def test_no_statement_of_a_relay_asks_for_the_time_its_transaction_began() -> None:
    statements = postgres_sql.Statements(OutboxNames())
    texts = [text for text in vars(statements).values() if isinstance(text, str)]

    assert any("clock_timestamp()" in text for text in texts)
    assert not [text for text in texts if "now()" in text.lower() or "current_time" in text.lower()]

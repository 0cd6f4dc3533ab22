"""The inbox in trouble: kills, conflicts, cancellations, a database that is away."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.pool import QueuePool

from outrider import DatabaseUnavailable
from outrider.consumer.inbox import InboxCleanup
from outrider.consumer.sql_inbox import SqlInbox, SqlProcessedEvents
from outrider.store.schema import migrate as schema
from outrider.testing.services import Services
from tests.support.canary import CANARY
from tests.support.databases import ASYNC_DRIVERS, close, create_database, engine_with_outbox
from tests.support.inbox_shop import OrderPlaced, Shop, invoice, placed
from tests.support.until import until

POSTGRES = [driver for driver in ASYNC_DRIVERS if driver.startswith("postgresql")]


@pytest.fixture(params=ASYNC_DRIVERS)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    made = Shop(await engine_with_outbox(request.param, request, tmp_path))
    await made.open()
    yield made
    await close(made.engine)


on_postgres = pytest.mark.parametrize("shop", POSTGRES, indirect=True)


@pytest.mark.parametrize(
    "where", ["between effect and commit", "between commit and acknowledgement"]
)
async def test_consumer_that_is_killed_takes_effect_once(shop: Shop, where: str) -> None:
    event, url = placed(), shop.engine.url.render_as_string(hide_password=False)
    command = ("-m", "tests.support.processes.inbox_process", url, where, event.to_json().decode())
    consumer = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert consumer.stdout is not None
    async with asyncio.timeout(60):
        assert (await consumer.stdout.readline()).decode().strip() == where
    consumer.send_signal(signal.SIGKILL)
    await consumer.wait()

    assert await shop.deliver(event) is None

    assert await shop.state() == (1, 1)


@pytest.mark.fault("D8")
@on_postgres
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_conflict_of_two_snapshots_costs_no_attempt(shop: Shop, level: str) -> None:
    sessions = async_sessionmaker(shop.engine.execution_options(isolation_level=level))
    inbox, event, entered, go = SqlInbox(sessions), placed(), asyncio.Event(), asyncio.Event()

    async def slow(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        entered.set()
        await go.wait()

    first = asyncio.create_task(shop.deliver(event, slow, inbox=inbox))
    await entered.wait()
    second = asyncio.create_task(shop.deliver(event, inbox=inbox))
    await until(shop.blocked)
    go.set()

    assert await first is None
    failure = await second
    assert failure is not None
    assert failure.verdict == "wait"
    assert await shop.deliver(event, inbox=inbox) is None
    assert await shop.state() == (1, 1)


@pytest.mark.fault("D8")
@on_postgres
async def test_deadlock_costs_no_attempt(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        await connection.execute(text("INSERT INTO customer VALUES ('a'), ('b')"))
    both_hold_one = asyncio.Barrier(2)

    async def cross(event: OrderPlaced, session: AsyncSession) -> None:
        lock = text("SELECT FROM customer WHERE email = :email FOR UPDATE")
        await session.execute(lock, {"email": "ab"[event.order_id]})
        await both_hold_one.wait()
        await session.execute(lock, {"email": "ab"[1 - event.order_id]})
        await invoice(event, session)

    failures = await asyncio.gather(*(shop.deliver(placed(n), cross) for n in range(2)))

    (failure,) = filter(None, failures)
    assert (failure.verdict, type(failure.error)) == ("wait", DatabaseUnavailable)
    assert "40P01" in str(failure.error)
    assert await shop.state() == (1, 1)


@pytest.mark.fault("D7")
@on_postgres
@pytest.mark.parametrize("when", ["in a statement", "between statements", "before the commit"])
async def test_connection_that_is_lost_costs_no_attempt(shop: Shop, when: str) -> None:
    event, other = placed(), shop.engine

    async def lose(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
        if when == "in a statement":
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        async with other.connect() as connection:
            await connection.execute(text("SELECT pg_terminate_backend(:pid, 30000)"), {"pid": pid})
        if when == "between statements":
            await session.execute(text("SELECT 1"))

    failure = await shop.deliver(event, lose)

    assert failure is not None
    assert (failure.verdict, type(failure.error)) == ("wait", DatabaseUnavailable)
    assert await shop.deliver(event) is None
    assert await shop.state() == (1, 1)


@pytest.mark.fault("D7")
@on_postgres
async def test_statement_that_is_too_slow_is_the_handlers_fault(shop: Shop) -> None:
    async def slow(_event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(text("SET LOCAL statement_timeout = 1"))
        await session.execute(text("SELECT pg_sleep(10)"))

    failure = await shop.deliver(placed(), slow)

    assert failure is not None
    assert failure.verdict == "count"
    assert await shop.marks() == 0


@pytest.mark.parametrize("driver", POSTGRES)
async def test_database_that_is_away_costs_no_attempt_and_tells_no_password(driver: str) -> None:
    engine = create_async_engine(f"{driver}://nobody:{CANARY}@127.0.0.1:1/nowhere")
    store, event = SqlProcessedEvents(engine), placed()

    failure = await Shop(engine).deliver(event)

    assert failure is not None
    assert (failure.verdict, type(failure.error)) == ("wait", DatabaseUnavailable)
    assert CANARY not in str(failure.error)
    for call in (store.contains, store.mark):
        with pytest.raises(DatabaseUnavailable):
            await call(event.event_id, "mail")
    await engine.dispose()


@on_postgres
async def test_pool_that_is_used_up_costs_no_attempt(shop: Shop) -> None:
    url = shop.engine.url
    engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    async with engine.connect():
        failure = await Shop(engine).deliver(placed())

    assert failure is not None
    assert failure.verdict == "wait"
    await engine.dispose()


@pytest.mark.fault("D20")
async def test_locked_sqlite_costs_no_attempt(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    shop = Shop(create_async_engine(url, connect_args={"timeout": 0.05}))
    await schema.create_all(shop.engine)
    await shop.open()
    event = placed()

    async with shop.engine.connect() as writer:
        await writer.execute(text("BEGIN IMMEDIATE"))
        failure = await shop.deliver(event)

    assert failure is not None
    assert (failure.verdict, str(failure.error)) == ("wait", "OperationalError SQLITE_BUSY")
    assert await shop.deliver(event) is None
    assert await shop.state() == (1, 1)
    await shop.engine.dispose()


@pytest.fixture
async def consumer(services: Services) -> AsyncIterator[AsyncEngine]:
    """Connected as a role that has the printed grants, and may write its own table."""
    owner = create_async_engine(create_database(services).replace("postgresql", POSTGRES[0], 1))
    await schema.create_all(owner)
    await Shop(owner).open()
    role = f"consumer_{uuid4().hex[:8]}"
    [grant] = schema.grants(consumer=role)
    async with owner.begin() as connection:
        await connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'x'"))
        await connection.execute(text(grant))
        for own in ("TABLE invoice", "SEQUENCE invoice_id_seq"):
            await connection.execute(text(f"GRANT ALL ON {own} TO {role}"))
    made = create_async_engine(owner.url.set(username=role, password="x"))
    yield made
    await made.dispose()
    async with owner.begin() as connection:
        await connection.execute(text(f"DROP OWNED BY {role}"))
        await connection.execute(text(f"DROP ROLE {role}"))
    await owner.dispose()


async def test_role_of_a_consumer_suffices(consumer: AsyncEngine) -> None:
    shop, event = Shop(consumer), placed()

    for _ in range(2):
        assert await shop.deliver(event) is None

    assert await shop.state() == (1, 1)
    assert await InboxCleanup(SqlProcessedEvents(consumer)).delete_old_marks() == 0


CANCELS = 300 if os.environ.get("OUTRIDER_FULL") else 100


@pytest.mark.fault("E16")
@on_postgres
@pytest.mark.parametrize("scoped", [False, True])
async def test_cancelled_handlers_leave_nothing_behind(shop: Shop, scoped: bool) -> None:
    """In whatever moment: neither connections, transactions, locks, nor half an effect."""
    chance, events = random.Random(16), [placed(n) for n in range(20)]
    settings = {"inbox": SqlInbox(), "scope": shop.scope} if scoped else {}
    took = max([await duration_of(shop.deliver(event, several_steps)) for event in events[:5]])
    cancelled = 0

    async def cancel_somewhere() -> None:
        nonlocal cancelled
        new = placed(100)
        task = asyncio.create_task(shop.deliver(new, several_steps, **settings))
        await asyncio.sleep(chance.uniform(0, took))
        task.cancel()
        await asyncio.wait({task})
        cancelled += task.cancelled()
        await until(lambda: done(shop.deliver(new, **settings)))

    async with asyncio.timeout(120):
        while cancelled < CANCELS:
            await asyncio.gather(*(cancel_somewhere() for _ in range(5)))

    invoices, marks = await shop.state()
    assert invoices == marks
    await until(lambda: nothing_open(shop.engine))


async def several_steps(event: OrderPlaced, session: AsyncSession) -> None:
    for _ in range(3):
        await session.execute(text("SELECT count(*) FROM invoice"))
    await invoice(event, session)
    await session.execute(text("SELECT count(*) FROM invoice"))


async def done(delivery: Awaitable[object]) -> bool:
    return await delivery is None


async def duration_of(work: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await work
    return loop.time() - started


async def nothing_open(engine: AsyncEngine) -> bool:
    """No transaction, no lock, no connection but those that the pool holds."""
    pool = cast("QueuePool", engine.pool)
    if pool.checkedout():
        return False
    gc.collect()  # psycopg keeps a connection that was being opened until then
    async with engine.connect() as connection:
        (found,) = await connection.execute(
            text(
                "SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()),"
                " (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND state <> 'idle'), (SELECT count(*) FROM pg_locks WHERE database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
                " AND pid <> pg_backend_pid())"
            )
        )
        return tuple(found) == (pool.checkedin() + 1, 1, 0)


async def test_cleanup_outlives_a_database_that_dies_and_comes_back(services: Services) -> None:
    server = services.another("postgres")
    engine = create_async_engine(server.url.replace("postgresql", POSTGRES[0], 1))
    await schema.create_all(engine)
    store, cleaned = SqlProcessedEvents(engine), asyncio.Event()
    outages = 0

    class Watched(SqlProcessedEvents):
        async def delete_before(self, moment: object, /) -> int:
            nonlocal outages
            try:
                gone = await super().delete_before(moment)  # type: ignore[arg-type]
            except DatabaseUnavailable:
                outages += 1
                raise
            if gone:
                cleaned.set()
            return gone

    soon = timedelta(milliseconds=10)
    await store.mark(uuid4(), "mail")
    async with InboxCleanup(
        Watched(engine), retention=soon, longest_redelivery=timedelta(0), every=soon
    ):
        async with asyncio.timeout(60):
            await cleaned.wait()
        server.kill()

        async def noticed() -> bool:
            return outages > 2

        await until(noticed)
        server.start()
        cleaned.clear()
        await store.mark(uuid4(), "mail")
        async with asyncio.timeout(60):
            await cleaned.wait()
    await engine.dispose()
    server.stop()


@on_postgres
async def test_forgetting_reads_no_more_than_the_oldest_marks(shop: Shop) -> None:
    statements: list[tuple[str, object]] = []
    now = datetime.now(UTC)
    async with shop.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO processed_events SELECT gen_random_uuid(), 'mail', "
                "CAST(:now AS timestamptz) - n * interval '1 second' "
                "FROM generate_series(1, 100000) AS n ORDER BY random()"
            ),
            {"now": now},
        )
        await connection.execute(text("ANALYZE processed_events"))

    @event.listens_for(shop.engine.sync_engine, "before_cursor_execute")
    def keep(_c: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        statements.append((statement, values))

    half = now - timedelta(seconds=50_000)
    assert await SqlProcessedEvents(shop.engine).delete_before(half) == 50_000

    assert len(statements) == 2 * (50_000 // 10_000 + 1)
    async with shop.engine.connect() as connection:
        for statement, values in statements[:2]:
            plan = await connection.exec_driver_sql(f"EXPLAIN {statement}", values)  # type: ignore[arg-type]
            assert "Seq Scan" not in str(plan.all())

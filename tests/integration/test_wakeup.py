"""Waking relays up: after the commit, gathered, and never at the caller's cost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outrider import DomainEvent
from outrider.lanes import decode_lanes
from outrider.recording.outbox import Outbox
from outrider.recording.rows import row_of
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxTables
from outrider.store.wakeup import notifier_for
from outrider.testing.services import Services
from tests.support.databases import create_database


class Listener:
    """What a relay does: a connection of its own that counts the notifications it gets."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.heard = 0
        self.word = ""
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()

    def __call__(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        if payload == "end":
            self.ended.set()
        else:
            self.heard += 1
            self.word = payload
            self.changed.set()

    async def next(self) -> None:
        async with asyncio.timeout(10):
            await self.changed.wait()
        self.changed.clear()

    async def until_end(self) -> int:
        """How many it has heard before a mark that is sent now."""
        await self.connection.execute("NOTIFY outbox_channel, 'end'")
        async with asyncio.timeout(10):
            await self.ended.wait()
        return self.heard


@pytest.fixture
def url(services: Services) -> str:
    return create_database(services)


@pytest.fixture
async def listener(url: str) -> AsyncIterator[Listener]:
    connection = await asyncpg.connect(url)
    heard = Listener(connection)
    await connection.add_listener("outbox_channel", heard)
    yield heard
    await connection.close()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def session(request: pytest.FixtureRequest, url: str) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(url.replace("postgresql", f"postgresql+{request.param}", 1))
    async with engine.begin() as connection:
        await connection.run_sync(OutboxTables().metadata.create_all)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


def happened() -> DomainEvent:
    return DomainEvent("thing.happened", "thing", 1, {})


async def test_commit_wakes_the_listener(session: AsyncSession, listener: Listener) -> None:
    async with session.begin():
        Outbox().record(session, happened())
        assert listener.heard == 0

    await listener.next()
    assert decode_lanes(listener.word) == {row_of(happened().to_envelope()).lane}


async def test_rollback_wakes_nobody(session: AsyncSession, listener: Listener) -> None:
    await session.begin()
    Outbox().record(session, happened())
    await session.rollback()
    async with session.begin():
        Outbox(wake_up=False).record(session, happened())
    async with session.begin():
        Outbox().record(session, happened())

    await listener.next()
    assert listener.heard == 1


async def test_many_commits_share_few_wake_ups(session: AsyncSession, listener: Listener) -> None:
    notifier = notifier_for(session.get_bind().engine, "outbox_channel")

    for _ in range(1_000):
        notifier.notify()

    await listener.next()
    assert await listener.until_end() < 200


@pytest.mark.fault("D13")
async def test_wake_up_has_a_connection_of_its_own(
    session: AsyncSession, listener: Listener
) -> None:
    statements: list[str] = []
    bind = session.get_bind()

    @event.listens_for(bind, "before_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async with session.begin():
        Outbox().record(session, happened())
    await listener.next()

    assert len(statements) == 1
    assert statements[0].startswith("INSERT INTO")


async def test_bare_connection_wakes_after_its_commit(
    session: AsyncSession, listener: Listener
) -> None:
    async with session.bind.begin() as connection:  # type: ignore[union-attr]
        Outbox().record(connection, happened())

    await listener.next()


async def test_sync_session_in_a_thread_wakes_too(
    session: AsyncSession, listener: Listener, url: str
) -> None:
    engine = create_engine(url.replace("postgresql", "postgresql+psycopg", 1))

    def work() -> None:
        with Session(engine) as plain, plain.begin():
            Outbox().record(plain, happened())

    await asyncio.to_thread(work)
    await listener.next()
    engine.dispose()


async def test_wake_up_whose_connection_an_operator_ended_is_sent_on_a_new_one(
    session: AsyncSession, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    async with session.begin():
        Outbox().record(session, happened())
    await listener.next()
    ended = await listener.connection.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE 'NOTIFY%'"
    )

    async with session.begin():
        Outbox().record(session, happened())

    await listener.next()
    assert ended == 1
    assert "wake-up failed" not in caplog.text


@pytest.mark.fault("D13")
async def test_wake_up_that_fails_is_said_once_and_costs_nothing(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody:canary@127.0.0.1:1/nowhere")
    said = threading.Event()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    logger = logging.getLogger("outrider.wakeup")
    logger.addHandler(handler := Said())
    notifier = notifier_for(engine.sync_engine, "outbox_channel")

    notifier.notify()
    assert await asyncio.to_thread(said.wait, 10)
    for _ in range(5):
        notifier.notify()
        await asyncio.sleep(0.02)
    logger.removeHandler(handler)

    warnings = [r for r in caplog.records if r.name == "outrider.wakeup"]
    assert [r.getMessage() for r in warnings] == [
        "wake-up failed, relays will poll (ConnectionRefusedError)"
    ]
    assert "canary" not in caplog.text
    await engine.dispose()


async def test_wake_up_recovers_after_the_database_came_back(services: Services) -> None:
    server = services.another("postgres")
    engine = create_async_engine(server.url.replace("postgresql", "postgresql+asyncpg", 1))
    names = OutboxNames()
    notifier = notifier_for(engine.sync_engine, names.channel)

    async def heard() -> None:
        connection = await asyncpg.connect(server.url)
        listener = Listener(connection)
        await connection.add_listener(names.channel, listener)
        async with asyncio.timeout(20):
            while not listener.heard:
                notifier.notify()
                await asyncio.sleep(0.02)
        await connection.close()

    await heard()
    await asyncio.to_thread(server.kill)
    notifier.notify()
    await asyncio.to_thread(server.start)
    await heard()
    await engine.dispose()


async def test_relay_of_the_same_process_is_called_directly(tmp_path: object) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    async with engine.begin() as connection:
        await connection.run_sync(OutboxTables().metadata.create_all)
    pokes: list[str] = []
    stop = notifier_for(engine.sync_engine, "outbox_channel").subscribe(pokes.append)

    async with AsyncSession(engine) as session:
        async with session.begin():
            Outbox().record(session, happened())
        stop()
        async with session.begin():
            Outbox().record(session, happened())

    assert [decode_lanes(word) for word in pokes] == [{row_of(happened().to_envelope()).lane}]
    await engine.dispose()

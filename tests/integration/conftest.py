"""A fresh database for each test, on every kind the library writes to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.recording.outbox import Outbox
from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Services

_numbers = count()

DRIVERS = ["postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"]

business = Table("business", MetaData(), Column("id", String, primary_key=True))


def fresh_postgres(services: Services) -> str:
    """The URL of a new, empty database, with no driver named."""
    name = f"test_{next(_numbers)}"
    services.postgres.psql(f"create database {name}")
    return services.postgres.url.rpartition("/")[0] + f"/{name}"


def transactional_sqlite(engine: AsyncEngine) -> None:
    """The driver begins no transaction before the first write; savepoints need one."""

    @event.listens_for(engine.sync_engine, "connect")
    def leave_begin_to_us(connection: object, _record: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: object) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # type: ignore[attr-defined]


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(wake_up=False)


async def made_for(driver: str, request: pytest.FixtureRequest, folder: Path) -> AsyncEngine:
    """An engine over a new database that has the outbox and a business table."""
    if driver.startswith("sqlite"):
        engine = create_async_engine(f"{driver}:///{folder}/outbox.db")
    else:
        url = fresh_postgres(request.getfixturevalue("services"))
        engine = create_async_engine(url.replace("postgresql", driver, 1))
    async with engine.begin() as connection:
        await connection.run_sync(OutboxTables().metadata.create_all)
        await connection.run_sync(business.metadata.create_all)
    return engine


@pytest.fixture(params=DRIVERS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For writing: every driver, with transactions that can have savepoints."""
    made = await made_for(request.param, request, tmp_path)
    if request.param.startswith("sqlite"):
        transactional_sqlite(made)
        await made.dispose()
    yield made
    await made.dispose()


@pytest.fixture(params=["postgresql+asyncpg", "sqlite+aiosqlite"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For relays: each kind of store."""
    made = await made_for(request.param, request, tmp_path)
    yield made
    await made.dispose()

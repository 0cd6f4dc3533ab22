"""A fresh database for each test, on every kind the library writes to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.sql.outbox import Outbox
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


@pytest.fixture(params=DRIVERS)
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, outbox: Outbox
) -> AsyncIterator[AsyncEngine]:
    driver: str = request.param
    if driver.startswith("sqlite"):
        made = create_async_engine(f"{driver}:///{tmp_path}/outbox.db")
        transactional_sqlite(made)
    else:
        url = fresh_postgres(request.getfixturevalue("services"))
        made = create_async_engine(url.replace("postgresql", driver, 1))
    async with made.begin() as connection:
        await connection.run_sync(outbox.tables.metadata.create_all)
        await connection.run_sync(business.metadata.create_all)
    yield made
    await made.dispose()

"""`open_engine`: any usual URL, and a SQLite whose transactions do not surprise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from outrider import ConfigurationError, open_engine
from outrider.testing.services import Services


async def test_sqlite_transactions_lock_first_and_have_savepoints(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/shop.db")
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE counter (n INTEGER)"))
        await connection.execute(text("INSERT INTO counter VALUES (0)"))

    async def count() -> None:
        async with engine.begin() as connection:
            n = await connection.scalar(text("SELECT n FROM counter"))
            await asyncio.sleep(0)
            await connection.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})

    await asyncio.gather(*(count() for _ in range(20)))
    async with engine.begin() as connection:
        savepoint = await connection.begin_nested()
        await connection.execute(text("UPDATE counter SET n = -1"))
        await savepoint.rollback()

    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT n FROM counter")) == 20
        assert await connection.scalar(text("PRAGMA journal_mode")) == "wal"
    await engine.dispose()


async def test_url_needs_no_driver(services: Services) -> None:
    engine = open_engine(services.postgres.url)

    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1
    await engine.dispose()


@pytest.mark.parametrize("url", ["canary-7b1", "oracle://u:canary-7b1@h/x"])
def test_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_engine(url)

    assert "canary" not in str(refused.value)

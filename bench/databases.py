"""A database of its own for a measurement, so that nothing else is in its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from outrider import create_all


@contextmanager
def database(server: str, name: str) -> Iterator[str]:
    """Empty, and gone at the end."""
    asyncio.run(_execute(server, f"CREATE DATABASE {name}"))
    try:
        yield f"{server.rpartition('/')[0]}/{name}"
    finally:
        asyncio.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def outbox_database(server: str, name: str) -> Iterator[str]:
    """With our tables."""
    with database(server, name) as url:
        asyncio.run(_tables(url))
        yield url


def for_engine(url: str) -> str:
    return url.replace("postgresql", "postgresql+asyncpg", 1)


async def _execute(url: str, statement: str) -> None:
    link = await asyncpg.connect(url)
    try:
        await link.execute(statement)
    finally:
        await link.close()


async def _tables(url: str) -> None:
    engine = create_async_engine(for_engine(url))
    await create_all(engine)
    await engine.dispose()

"""A database of its own for a measurement, so that nothing else is in its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from outrider import create_all
from outrider.testing.services import Services


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


@contextmanager
def outbox_on(services: Services | None, name: str) -> Iterator[tuple[Services, str]]:
    """These servers, or some of our own, and on them a database with our tables."""
    with ExitStack() as stack:
        running = services or stack.enter_context(Services())
        yield running, stack.enter_context(outbox_database(running.postgres.url, name))


def for_engine(url: str) -> str:
    return url.replace("postgresql", "postgresql+asyncpg", 1)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _tables(url: str) -> None:
    engine = create_async_engine(for_engine(url))
    await create_all(engine)
    await engine.dispose()

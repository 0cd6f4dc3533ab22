"""Engines that suit an outbox: a driver if the URL names none, and a SQLite to rely on."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.errors import ConfigurationError

_DRIVERS: Final = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
_SUPPORTED: Final = {"postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"}


def open_engine(url: str | URL, **options: Any) -> AsyncEngine:
    """An AsyncEngine for postgresql:// or sqlite:///; `options` are those of SQLAlchemy.

    On SQLite every transaction has the write lock from its beginning, waits for others, may
    have savepoints, and survives a power cut. Parameters stay out of error messages.
    """
    engine = create_async_engine(with_driver(url), **{"hide_parameters": True, **options})
    if engine.dialect.name == "sqlite":
        _make_transactional(engine)
    return engine


def with_driver(url: str | URL) -> URL:
    """A URL as others write it, with a driver for asyncio; never repeated in an error."""
    try:
        made = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError("this is not a database URL") from None
    made = made.set(drivername=_DRIVERS.get(made.drivername, made.drivername))
    if made.drivername not in _SUPPORTED:
        raise ConfigurationError(f"{made.drivername}: use postgresql://… or sqlite:///…")
    return _ssl_for_asyncpg(made)


def _ssl_for_asyncpg(url: URL) -> URL:
    """libpq and most hosters write sslmode; asyncpg calls the same values ssl."""
    if url.drivername != "postgresql+asyncpg" or "sslmode" not in url.query:
        return url
    others = url.difference_update_query(["sslmode"])
    return others.update_query_pairs([("ssl", str(url.query["sslmode"]))])


def _make_transactional(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        # The driver's own BEGIN comes late, and only before changes; ours comes at once.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA busy_timeout = 30000")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

"""Database engines: adds an asyncio driver to the URL, makes SQLite transactions durable."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection

_DRIVERS: Final = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
_EXTRAS: Final = {"asyncpg": "postgres", "psycopg": "psycopg", "aiosqlite": "sqlite"}
_PARAMETERS_OF_SQLALCHEMY: Final = {
    *("async_creator_fn", "async_fallback", "prepared_statement_cache_size"),
    "prepared_statement_name_func",
}
_SUPPORTED: Final = {"postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"}


def open_engine(url: str | URL, **options: Any) -> AsyncEngine:
    """Create an AsyncEngine for postgresql:// or sqlite:///; `options` go to SQLAlchemy.

    On SQLite, a transaction takes the write lock when it begins, waits for other writers, supports
    savepoints, and is durable. SQL parameters stay out of error messages.
    """
    engine = make_engine(with_driver(url), **options)
    if engine.dialect.name == "sqlite":
        _make_transactional(engine)
    return engine


def make_engine(url: URL, **options: Any) -> AsyncEngine:
    """An engine of SQLAlchemy without SQL parameters in errors; a missing driver is named."""
    try:
        return create_async_engine(url, **{"hide_parameters": True, **options})
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get(missing.name or "")
        if extra is None:
            raise
        raise ConfigurationError(
            f"{missing.name} is missing: pip install 'outrider[{extra}]'"
        ) from None


def check_engine(engine: object, owner: str) -> None:
    """Refuse what is no AsyncEngine. Never quotes it: a URL may hold a password."""
    if not isinstance(engine, AsyncEngine):
        raise ConfigurationError(
            f"{owner} takes an AsyncEngine, not {type(engine).__name__}: make one with "
            "open_engine(url)"
        )


def with_driver(url: str | URL) -> URL:
    """The URL with an asyncio driver. Errors never quote the URL, which may hold a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "this is not a database URL: write postgresql://user:password@host/database or "
            "sqlite:///file.db"
        ) from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in _SUPPORTED:
        raise ConfigurationError(f"{parsed.drivername}: use postgresql://… or sqlite:///…")
    parsed = _ssl_for_asyncpg(parsed)
    _refuse_unknown_parameters(parsed)
    return parsed


def describe(url: URL) -> str:
    """The URL for people: without its password, and without parameters, which may hold another."""
    return url.set(query={}).render_as_string(hide_password=True)


def _ssl_for_asyncpg(url: URL) -> URL:
    """Rename the parameter sslmode, which libpq and most providers use, to asyncpg's name: ssl."""
    if url.drivername != "postgresql+asyncpg" or "sslmode" not in url.query:
        return url
    others = url.difference_update_query(["sslmode"])
    return others.update_query_pairs([("ssl", str(url.query["sslmode"]))])


def _refuse_unknown_parameters(url: URL) -> None:
    """asyncpg takes them as arguments of a function; one too many would be a TypeError."""
    if url.drivername != "postgresql+asyncpg" or find_spec("asyncpg") is None:
        return
    import asyncpg

    known = inspect.signature(asyncpg.connect).parameters.keys() | _PARAMETERS_OF_SQLALCHEMY
    if unknown := sorted(url.query.keys() - known):
        raise ConfigurationError(
            f"asyncpg has no parameter {', '.join(unknown)}, which stands behind the ? of the "
            "database URL; TLS is sslmode there, with PGSSLROOTCERT, PGSSLCERT and PGSSLKEY"
        )


def _make_transactional(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: DBAPIConnection, _record: object) -> None:
        # Turns off the driver's own BEGIN, which it sends only before the first change.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA busy_timeout = 30000")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

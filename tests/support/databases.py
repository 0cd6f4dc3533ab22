"""New databases for tests, and what is in them as plain data."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    NullPool,
    String,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Services

ASYNC_DRIVERS = ["postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"]
DIALECTS = ["postgresql", "sqlite"]
DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql+asyncpg"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}


@dataclass(frozen=True)
class Database:
    url: str
    """The URL as a user writes it, without a driver."""

    @property
    def dialect(self) -> str:
        return make_url(self.url).get_backend_name()

    def _url(self, asynchronous: bool) -> URL:
        return make_url(self.url).set(drivername=DRIVERS[self.dialect][asynchronous])

    def engine(self) -> Engine:
        return create_engine(self._url(False), poolclass=NullPool)

    def async_engine(self, **options: Any) -> AsyncEngine:
        return create_async_engine(self._url(True), poolclass=NullPool, **options)

    def run(self, *statements: str) -> list[Any]:
        """Run SQL in one transaction; return the rows of the last statement."""
        with self.engine().begin() as connection:
            for statement in statements:
                result = connection.execute(text(statement))
            return list(result) if result.returns_rows else []

    def picture(self, schema: str | None = None) -> dict[str, Any]:
        """All properties of the tables, to compare two databases."""
        with self.engine().connect() as connection:
            names = inspect(connection).get_table_names(schema=schema)
            return {name: _picture(connection, name, schema) for name in sorted(names)}


def _picture(connection: Connection, table: str, schema: str | None) -> dict[str, Any]:
    inspector = inspect(connection)
    dialect = connection.dialect.name
    return {
        "columns": [
            (c["name"], repr(c["type"]), c["nullable"], _bare(c["default"]), c.get("identity"))
            for c in inspector.get_columns(table, schema=schema)
        ],
        "key": inspector.get_pk_constraint(table, schema=schema)["constrained_columns"],
        "unique": [
            c["column_names"] for c in inspector.get_unique_constraints(table, schema=schema)
        ],
        "indexes": {
            i["name"]: (
                i["column_names"],
                bool(i["unique"]),
                str(i.get("dialect_options", {}).get(f"{dialect}_where")),
            )
            for i in inspector.get_indexes(table, schema=schema)
        },
        "autoincrement": dialect == "sqlite" and _autoincrement(connection, table),
    }


def _bare(default: str | None) -> str | None:
    """SQLAlchemy 2.0 puts one more pair of parentheses around a default than 2.1."""
    return default and default.strip("()")


def _autoincrement(connection: Connection, table: str) -> bool:
    made_by = text("SELECT sql FROM sqlite_master WHERE name = :table")
    return "AUTOINCREMENT" in str(connection.scalar(made_by, {"table": table}))


def insert(table: str = "outbox") -> str:
    """One event, as a producer without this library would write it."""
    return (
        f"INSERT INTO {table} (id, lane, aggregate_key, event_type, aggregate_type, "  # noqa: S608
        "aggregate_id, payload, metadata, occurred_at) VALUES ('0190163d8694739b9d0b12b3c4d5e6f7', "
        "1, 7, 'order.placed', 'order', 'o-1', '{}', '{}', '2024-05-01 12:00:00')"
    )


def create_database(services: Services) -> str:
    """An empty database, perhaps one that was given back; returns its URL, with no driver named."""
    server = services.postgres
    spare = _spare.setdefault(server.address, [])
    if spare:
        return spare.pop()
    name = f"test_{uuid.uuid4().hex}"
    server.psql(f"create database {name}")
    return make_url(server.url).set(database=name).render_as_string(False)


# To make a database takes PostgreSQL four times as long as to empty one.
_spare: dict[str, list[str]] = {}
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

_EMPTY = """
DO $$ DECLARE name text; BEGIN
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
END $$;
CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;
"""


def give_back(url: URL | str) -> None:
    """Empty a database of PostgreSQL for another test, unless somebody is still connected.

    The thread that sends wake-ups is, for ten seconds: cut off, it would miss one of the next test.
    """
    url = make_url(url).set(drivername="postgresql")
    text_url = url.render_as_string(hide_password=False)
    writable = "-c default_transaction_read_only=off"
    with psycopg.connect(text_url, autocommit=True, options=writable) as connection:
        if connection.execute(_OTHERS).fetchone() != (0,):
            return
        connection.execute(_EMPTY)
    _spare[f"{url.host}:{url.port}"].append(text_url)


@contextmanager
def fresh_postgres(services: Services) -> Iterator[Database]:
    """An empty database, which is given back at the end."""
    url = create_database(services)
    yield Database(url)
    give_back(url)


@contextmanager
def fresh(dialect: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Database]:
    if dialect == "sqlite":
        yield Database(f"sqlite:///{folder / 'outbox.db'}")
    else:
        with fresh_postgres(request.getfixturevalue("services")) as database:
            yield database


def pipe(services: Services, database: Database, sql: str) -> None:
    """Pipe SQL into psql, as a DBA does."""
    server = services.postgres
    psql = (server.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database.url)
    server.run(*psql, stdin=sql)


business = Table("business", MetaData(), Column("id", String, primary_key=True))


async def engine_with_outbox(
    driver: str, request: pytest.FixtureRequest, folder: Path
) -> AsyncEngine:
    """An engine to a new database that has the outbox and a business table."""
    if driver.startswith("sqlite"):
        engine = create_async_engine(f"{driver}:///{folder}/outbox.db")
    else:
        url = create_database(request.getfixturevalue("services"))
        engine = create_async_engine(url.replace("postgresql", driver, 1))
    async with engine.begin() as connection:
        await connection.run_sync(OutboxTables().metadata.create_all)
        await connection.run_sync(business.metadata.create_all)
    return engine


async def close(engine: AsyncEngine) -> None:
    """Close an engine of `engine_with_outbox`, whose database another test may have now."""
    await engine.dispose()
    if engine.dialect.name == "postgresql":
        await asyncio.to_thread(give_back, engine.url)


def transactional_sqlite(engine: AsyncEngine) -> None:
    """Begin each transaction explicitly: the driver begins none before the first write, and a
    savepoint needs one."""

    @event.listens_for(engine.sync_engine, "connect")
    def leave_begin_to_us(connection: object, _record: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: object) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # type: ignore[attr-defined]

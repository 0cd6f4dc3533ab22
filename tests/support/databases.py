"""Fresh databases for tests of the tables, and what is in them as plain data."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, inspect, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.testing.services import Services

DIALECTS = ["postgresql", "sqlite"]
DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql+asyncpg"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}


@dataclass(frozen=True)
class Database:
    url: str
    """As a user would write it."""

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
        """Run SQL in one transaction; the rows of the last statement."""
        with self.engine().begin() as connection:
            for statement in statements:
                result = connection.execute(text(statement))
            return list(result) if result.returns_rows else []

    def picture(self, schema: str | None = None) -> dict[str, Any]:
        """Everything about the tables that a difference could hide in."""
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


@contextmanager
def fresh_postgres(services: Services) -> Iterator[Database]:
    name = f"schema_{uuid.uuid4().hex[:12]}"
    services.postgres.psql(f"create database {name}")
    url = make_url(services.postgres.url).set(database=name)
    yield Database(url.render_as_string(hide_password=False))
    services.postgres.psql(f"drop database {name} with (force)")


@contextmanager
def fresh(dialect: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Database]:
    if dialect == "sqlite":
        yield Database(f"sqlite:///{folder / 'outbox.db'}")
    else:
        with fresh_postgres(request.getfixturevalue("services")) as database:
            yield database


def pipe(services: Services, database: Database, sql: str) -> None:
    """What a DBA does with printed SQL."""
    server = services.postgres
    psql = (server.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database.url)
    server.run(*psql, stdin=sql)

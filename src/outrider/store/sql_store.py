"""The outbox store that fits an engine: PostgreSQL or SQLite."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.errors import ConfigurationError
from outrider.ports import DEFAULT_SINK
from outrider.store.engines import check_engine
from outrider.store.schema.tables import check_tables

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.ports import RelayStore
    from outrider.store.schema.tables import OutboxTables


def SqlOutboxStore(  # noqa: N802 - reads as the class that it stands for
    engine: AsyncEngine,
    tables: OutboxTables | None = None,
    *,
    sink: str = DEFAULT_SINK,
    park: bool = False,
    timeout: timedelta = timedelta(seconds=10),
    announce: bool = False,
) -> RelayStore:
    """The outbox of this database, for a relay that serves one sink.

    `park` holds an aggregate back behind its failed event until a person acts. `timeout` is for
    each call of the database. `announce` wakes up the readers of a live stream.
    """
    check_engine(engine, "SqlOutboxStore")
    check_tables(tables, "SqlOutboxStore")
    if engine.dialect.name == "postgresql":
        from outrider.store.postgres.store import PostgresOutboxStore

        return PostgresOutboxStore(
            engine, tables, sink=sink, park=park, timeout=timeout, announce=announce
        )
    if engine.dialect.name == "sqlite":
        from outrider.store.sqlite.store import SqliteOutboxStore

        return SqliteOutboxStore(
            engine, tables, sink=sink, park=park, timeout=timeout, announce=announce
        )
    raise ConfigurationError(f"no outbox for {engine.dialect.name}; there is PostgreSQL and SQLite")

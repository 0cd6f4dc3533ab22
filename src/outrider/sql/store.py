"""The store that fits an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.ports import OutboxStore
    from outrider.sql.tables import OutboxTables


def SqlOutbox(  # noqa: N802 - reads as the class that it stands for
    engine: AsyncEngine, tables: OutboxTables | None = None, **options: Any
) -> OutboxStore:
    """The outbox of this database, for a relay."""
    if engine.dialect.name == "postgresql":
        from outrider.sql.postgres import PostgresOutbox

        return PostgresOutbox(engine, tables, **options)
    if engine.dialect.name == "sqlite":
        from outrider.sql.sqlite import SqliteOutbox

        return SqliteOutbox(engine, tables, **options)
    raise ConfigurationError(f"no outbox for {engine.dialect.name}; there is PostgreSQL and SQLite")

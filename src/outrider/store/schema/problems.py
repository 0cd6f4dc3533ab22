"""Schema problems: missing columns, missing or invalid indexes, wrong numbering of rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import inspect, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Table

    from outrider.store.schema.tables import OutboxTables

_CURE: Final = "make it as `outrider schema print` shows"

_INVALID: Final = text(
    "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
    "WHERE indrelid = to_regclass(:table) AND NOT indisvalid"
)
_CACHE: Final = text(
    "SELECT seqcache FROM pg_sequence "
    "WHERE seqrelid = to_regclass(pg_get_serial_sequence(:table, 'position'))"
)
_SQLITE_TABLE: Final = text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :table")


_CREATE_INDEX: Final = re.compile(r'CREATE INDEX "(\w+)"')


def is_missing_table(error: Exception) -> bool:
    original = getattr(error, "orig", None)
    return getattr(original, "sqlstate", None) == "42P01" or "no such table" in str(original)


def schema_problems(
    connection: Connection, tables: OutboxTables, migrations: list[str]
) -> list[str]:
    """One sentence with a cure for each difference from the tables that migrations create."""
    indexes = {match[1]: sql for sql in migrations if (match := _CREATE_INDEX.match(sql))}
    problems: list[str] = []
    for table in tables.metadata.sorted_tables:
        if not inspect(connection).has_table(table.name, schema=table.schema):
            problems.append(f"table {table.fullname} is missing; {_CURE}")
            continue
        problems += _missing_columns(connection, table)
        own = {str(index.name) for index in table.indexes}
        problems += _bad_indexes(
            connection, table, {name: sql for name, sql in indexes.items() if name in own}
        )
    return problems or list(_bad_numbering(connection, tables.outbox))


def _missing_columns(connection: Connection, table: Table) -> Iterator[str]:
    columns = inspect(connection).get_columns(table.name, schema=table.schema)
    present = {column["name"] for column in columns}
    for column in table.columns:
        if column.name not in present:
            yield f"column {table.fullname}.{column.name} is missing; {_CURE}"


def _bad_indexes(connection: Connection, table: Table, expected: dict[str, str]) -> Iterator[str]:
    indexes = inspect(connection).get_indexes(table.name, schema=table.schema)
    present, invalid = {index["name"] for index in indexes}, _invalid(connection, table)
    for name, create in expected.items():
        if name in invalid:
            cure = f"REINDEX INDEX CONCURRENTLY {_quoted(connection, table, name)}"
            yield f"index {name} is INVALID; {cure}"
        elif name not in present:
            yield f"index {name} is missing; {create}"


def _invalid(connection: Connection, table: Table) -> set[str]:
    """Indexes that a failed CREATE INDEX CONCURRENTLY left behind; queries do not use them."""
    if connection.dialect.name != "postgresql":
        return set()
    return set(connection.scalars(_INVALID, {"table": _quoted(connection, table, table.name)}))


def _bad_numbering(connection: Connection, outbox: Table) -> Iterator[str]:
    """The order of events needs positions that rise in the order of INSERTs, and are not reused."""
    column, name = f"{outbox.fullname}.position", _quoted(connection, outbox, outbox.name)
    if connection.dialect.name == "sqlite":
        table_sql = str(connection.scalar(_SQLITE_TABLE, {"table": outbox.name}))
        if "AUTOINCREMENT" not in table_sql.upper():
            yield f"column {column} is not AUTOINCREMENT; {_CURE}"
        return
    cache = connection.scalar(_CACHE, {"table": name})
    if cache is None:
        yield f"column {column} is not an identity; {_CURE}"
    elif cache != 1:
        cure = f"ALTER TABLE {name} ALTER COLUMN position SET CACHE 1"
        yield f"column {column} draws its numbers with cache {cache}, not 1; {cure}"


def _quoted(connection: Connection, table: Table, name: str) -> str:
    quote = connection.dialect.identifier_preparer.quote_identifier
    return ".".join(quote(part) for part in (table.schema, name) if part)

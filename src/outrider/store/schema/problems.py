"""What tables of the right version may still lack: found by looking, named with a cure."""

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


def damage(connection: Connection, tables: OutboxTables, made_by: list[str]) -> list[str]:
    """One sentence for each thing that is not as the statements have made it."""
    indexes = {made[1]: sql for sql in made_by if (made := _CREATE_INDEX.match(sql))}
    found: list[str] = []
    for table in tables.metadata.sorted_tables:
        if not inspect(connection).has_table(table.name, schema=table.schema):
            found.append(f"table {table.fullname} is missing; {_CURE}")
            continue
        found += _missing_columns(connection, table)
        own = {str(index.name) for index in table.indexes}
        found += _bad_indexes(
            connection, table, {name: sql for name, sql in indexes.items() if name in own}
        )
    return found or list(_bad_numbering(connection, tables.outbox))


def _missing_columns(connection: Connection, table: Table) -> Iterator[str]:
    columns = inspect(connection).get_columns(table.name, schema=table.schema)
    present = {column["name"] for column in columns}
    for column in table.columns:
        if column.name not in present:
            yield f"column {table.fullname}.{column.name} is missing; {_CURE}"


def _bad_indexes(connection: Connection, table: Table, expected: dict[str, str]) -> Iterator[str]:
    indexes = inspect(connection).get_indexes(table.name, schema=table.schema)
    present, invalid = {index["name"] for index in indexes}, _invalid(connection, table)
    for name, make in expected.items():
        if name in invalid:
            cure = f"REINDEX INDEX CONCURRENTLY {_quoted(connection, table, name)}"
            yield f"index {name} is INVALID; {cure}"
        elif name not in present:
            yield f"index {name} is missing; {make}"


def _invalid(connection: Connection, table: Table) -> set[str]:
    """What a CREATE INDEX CONCURRENTLY that failed leaves behind; nothing of ours uses it."""
    if connection.dialect.name != "postgresql":
        return set()
    return set(connection.scalars(_INVALID, {"table": _quoted(connection, table, table.name)}))


def _bad_numbering(connection: Connection, outbox: Table) -> Iterator[str]:
    """Order rests on numbers that rise in the order they are drawn and never come back."""
    column, name = f"{outbox.fullname}.position", _quoted(connection, outbox, outbox.name)
    if connection.dialect.name == "sqlite":
        made_by = str(connection.scalar(_SQLITE_TABLE, {"table": outbox.name}))
        if "AUTOINCREMENT" not in made_by.upper():
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

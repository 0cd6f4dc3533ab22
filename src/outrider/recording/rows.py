"""Outbox rows: makes a row from an envelope, and inserts all rows with one statement."""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import UTC
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import inspect
from sqlalchemy.orm import class_mapper

from outrider.errors import InvalidEvent
from outrider.events.ids import ForeignEventId
from outrider.events.strict_json import JsonObject
from outrider.lanes import LANES, aggregate_key
from outrider.ports import DEFAULT_SINK
from outrider.recording.hidden_values import hidden_values
from outrider.store.schema.tables import OutboxRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection
    from sqlalchemy.engine import Dialect

    from outrider.events.envelope import EventEnvelope
    from outrider.store.schema.names import OutboxNames

# Drivers encode plain values much faster than arrays, but each number of rows is another prepared
# statement. So only a few rows are inserted with VALUES, and more rows with arrays.
_MAX_ROWS_AS_VALUES: Final = 16
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(JsonObject).decode
_DEFAULTS: Final = {
    each.name: each.default for each in fields(OutboxRecord) if each.default is not MISSING
}


class Row(NamedTuple):
    """The columns that the producer writes; the database fills in the others."""

    id: UUID
    sink: str
    lane: int
    aggregate_key: int
    event_type: str
    event_version: int
    aggregate_type: str
    aggregate_id: str
    payload: str
    metadata: str
    occurred_at: datetime
    max_retries: int | None = None
    """None leaves the limit to the relay."""


# The PostgreSQL type of each column.
_TYPES: Final = {
    "id": "uuid",
    "sink": "text",
    "lane": "smallint",
    "aggregate_key": "bigint",
    "event_type": "text",
    "event_version": "integer",
    "aggregate_type": "text",
    "aggregate_id": "text",
    "payload": "jsonb",
    "metadata": "jsonb",
    "occurred_at": "timestamptz",
    "max_retries": "integer",
}


def row_of(
    envelope: EventEnvelope, sink: str = DEFAULT_SINK, max_retries: int | None = None
) -> Row:
    """The columns of an envelope, for code that inserts the row itself."""
    if isinstance(envelope.event_id, ForeignEventId):
        raise InvalidEvent(
            f"{envelope.event_type}: event_id: {envelope.event_id} is no UUID, but the id of "
            "another producer; record a new event, with an id of its own"
        )
    key = aggregate_key(sink, envelope.aggregate_type, envelope.aggregate_id)
    return Row(
        envelope.event_id,
        sink,
        key % LANES,
        key,
        envelope.event_type,
        envelope.event_version,
        envelope.aggregate_type,
        envelope.aggregate_id,
        envelope.data.decode(),
        _encode(envelope.metadata).decode(),
        envelope.occurred_at,
        max_retries,
    )


def row_of_record(record: OutboxRecord) -> Row:
    """The columns of a record that the application has made or changed."""
    return row_of(record.checked_envelope(), record.sink, record.max_retries)


def record_of(row: Row) -> OutboxRecord:
    """The row as a new ORM object. Skips the constructor, since the event was checked before."""
    record: OutboxRecord = class_mapper(OutboxRecord).class_manager.new_instance()
    decoded = {"payload": _decode(row.payload), "metadata": _decode(row.metadata)}
    vars(record).update(_DEFAULTS | row._asdict() | decoded)
    return record


def is_changed(record: OutboxRecord, row: Row) -> bool:
    """Whether the application has changed the record since `record_of`."""
    if inspect(record).modified:
        return True
    return (record.payload, record.metadata) != (_decode(row.payload), _decode(row.metadata))


def insert(connection: Connection, names: OutboxNames, rows: Sequence[Row]) -> None:
    """Insert all rows with one statement. It needs only the INSERT privilege."""
    with hidden_values(names):
        _insert(connection, names, rows)


def _insert(connection: Connection, names: OutboxNames, rows: Sequence[Row]) -> None:
    dialect = connection.dialect
    if dialect.name == "sqlite":
        statement = _insert_values(dialect, names)
        connection.exec_driver_sql(statement, [_for_sqlite(row) for row in rows])
    elif len(rows) <= _MAX_ROWS_AS_VALUES:
        statement = _insert_values(dialect, names, len(rows))
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(rows)))
    else:
        arrays = tuple(list(column) for column in zip(*rows, strict=True))
        connection.exec_driver_sql(_insert_arrays(dialect, names), arrays)


def _for_sqlite(row: Row) -> tuple[object, ...]:
    moment = row.occurred_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return (row.id.hex, *row[1:-2], moment, row.max_retries)


@lru_cache(maxsize=64)
def _insert_values(dialect: Dialect, names: OutboxNames, count: int = 1) -> str:
    width = len(_TYPES)
    values = ", ".join(
        f"({', '.join(_placeholder(dialect, first + n) for n in range(1, width + 1))})"
        for first in range(0, count * width, width)
    )
    return f"{_insert_into(dialect, names)} VALUES {values}"


@lru_cache(maxsize=64)
def _insert_arrays(dialect: Dialect, names: OutboxNames) -> str:
    # JSON is sent as text, since drivers encode arrays of jsonb in different ways.
    arrays = ", ".join(
        f"{_placeholder(dialect, n)}::{'text' if kind == 'jsonb' else kind}[]"
        for n, kind in enumerate(_TYPES.values(), 1)
    )
    columns = ", ".join(f"{c}::jsonb" if kind == "jsonb" else c for c, kind in _TYPES.items())
    row = ", ".join(_TYPES)
    source = f"SELECT {columns} FROM unnest({arrays}) AS row ({row})"  # noqa: S608 - constants
    return f"{_insert_into(dialect, names)} {source}"


def _insert_into(dialect: Dialect, names: OutboxNames) -> str:
    return f"INSERT INTO {names.quoted('outbox', dialect)} ({', '.join(_TYPES)})"


def _placeholder(dialect: Dialect, number: int) -> str:
    style = {"numeric_dollar": f"${number}", "qmark": "?"}
    return style.get(dialect.paramstyle, "%s")

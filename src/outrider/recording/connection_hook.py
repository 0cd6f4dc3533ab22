"""Events held by a bare Connection until just before its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event

from outrider.recording.uncommitted_rows import UncommittedRows, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Pool

    from outrider.recording.rows import Row

_WRITTEN: Final = "outrider.written"
_held: Final[WeakKeyDictionary[Connection, dict[Writer, UncommittedRows]]] = WeakKeyDictionary()
_pools: Final[WeakSet[Pool]] = WeakSet()


def hold(connection: Connection, writer: Writer, rows: Iterable[Row]) -> int:
    if connection not in _held:
        _held[connection] = {}
        _listen(connection)
    held = _held[connection].setdefault(writer, UncommittedRows())
    return held.add(rows, _open_savepoints(connection))


def _open_savepoints(connection: Connection) -> list[str]:
    # The events speak of savepoints by a name that only these attributes tell.
    savepoints, nested = [], connection.get_nested_transaction()
    while nested is not None:
        savepoints.append(nested._savepoint)
        nested = nested._previous_nested
    return savepoints


def _listen(connection: Connection) -> None:
    event.listen(connection, "commit", _write_last)
    event.listen(connection, "prepare_twophase", lambda conn, _xid: _write_last(conn))
    event.listen(connection, "rollback", _clear)
    event.listen(connection, "rollback_savepoint", _roll_back_to)
    if connection.engine.pool not in _pools:
        _pools.add(connection.engine.pool)
        event.listen(connection.engine.pool, "checkin", _wake)


def _clear(connection: Connection) -> None:
    for rows in _held[connection].values():
        rows.clear()


def _roll_back_to(connection: Connection, savepoint: str, _: object) -> None:
    for rows in _held[connection].values():
        rows.roll_back_to(savepoint)


def _write_last(connection: Connection) -> None:
    for writer, rows in _held[connection].items():
        if rows:
            try:
                writer.write(connection, taken := rows.take())
            except BaseException:
                # SQLAlchemy thinks the transaction is over now; the database must think so too.
                connection.connection.rollback()
                raise
            connection.info.setdefault(_WRITTEN, []).append((writer, connection, taken))


def _wake(_dbapi_connection: Any, record: Any) -> None:
    """A connection has no event after its commit; it is given back to the pool soon enough."""
    for writer, connection, rows in record.info.pop(_WRITTEN, ()):
        writer.committed(connection, rows)

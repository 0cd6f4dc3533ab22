"""The hook on a bare Connection: writes uncommitted rows just before its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event

from outrider.recording.uncommitted_rows import UncommittedRows, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Pool
    from sqlalchemy.pool import ConnectionPoolEntry

    from outrider.recording.rows import Row

_WRITTEN: Final = "outrider.written"
_Uncommitted = dict[Writer, UncommittedRows]
_uncommitted: Final[WeakKeyDictionary[Connection, _Uncommitted]] = WeakKeyDictionary()
_pools: Final[WeakSet[Pool]] = WeakSet()


def add_rows(connection: Connection, writer: Writer, rows: Iterable[Row]) -> int:
    """Keep rows until just before the commit; returns how many events are new."""
    if connection not in _uncommitted:
        _uncommitted[connection] = {}
        _listen(connection)
    uncommitted = _uncommitted[connection].setdefault(writer, UncommittedRows())
    new = uncommitted.add(rows, _open_savepoints(connection))
    return len({row.id for row in new})


def _open_savepoints(connection: Connection) -> list[str]:
    # SQLAlchemy's hooks pass the name of a savepoint, and only these attributes hold that name.
    savepoints, nested = [], connection.get_nested_transaction()
    while nested is not None:
        savepoints.append(nested._savepoint)
        nested = nested._previous_nested
    return savepoints


def _listen(connection: Connection) -> None:
    event.listen(connection, "commit", _write_rows)
    event.listen(connection, "prepare_twophase", lambda conn, _xid: _write_rows(conn))
    event.listen(connection, "rollback", _clear)
    event.listen(connection, "rollback_savepoint", _roll_back_to)
    if connection.engine.pool not in _pools:
        _pools.add(connection.engine.pool)
        event.listen(connection.engine.pool, "checkin", _report_commits)


def _clear(connection: Connection) -> None:
    for rows in _uncommitted[connection].values():
        rows.clear()


def _roll_back_to(connection: Connection, savepoint: str, _: object) -> None:
    for rows in _uncommitted[connection].values():
        rows.roll_back_to(savepoint)


def _write_rows(connection: Connection) -> None:
    for writer, rows in _uncommitted[connection].items():
        if rows:
            try:
                writer.write(connection, taken := rows.take())
            except BaseException:
                # SQLAlchemy regards the transaction as ended, so end it in the database too.
                connection.connection.rollback()
                raise
            connection.info.setdefault(_WRITTEN, []).append((writer, connection, taken))


def _report_commits(_dbapi_connection: object, record: ConnectionPoolEntry) -> None:
    """Runs when the connection returns to the pool: SQLAlchemy has no hook after a commit."""
    for writer, connection, rows in record.info.pop(_WRITTEN, ()):
        writer.committed(connection, rows)

"""The hook on a Session: writes uncommitted rows just before its commit.

The INSERT assigns the positions that order the events of an aggregate, so it comes after every
other write: by then the transaction holds the locks of all aggregates it changed. Otherwise it
could change an aggregate after another transaction committed a later position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import event
from sqlalchemy.orm import Session

from outrider.recording import connection_hook
from outrider.recording.uncommitted_rows import UncommittedRows, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection
    from sqlalchemy.orm import SessionTransaction

    from outrider.recording.rows import Row

_UNCOMMITTED: Final = "outrider.uncommitted"
_COMMITTING: Final = "outrider.committing"
_WRITTEN: Final = "outrider.written"
_RELEASED: Final = "outrider.released"


def add_rows(session: Session, writer: Writer, rows: Iterable[Row]) -> int:
    """Keep rows until just before the commit; returns how many events are new."""
    if _COMMITTING in session.info:
        # Another hook recorded this during the last flush, after this session wrote its rows. The
        # connection commits later, so its hook still writes them.
        connection = session.connection(bind_arguments=writer.bind_arguments())
        return connection_hook.add_rows(connection, writer, rows)
    uncommitted: dict[Writer, UncommittedRows] = session.info.setdefault(_UNCOMMITTED, {})
    return uncommitted.setdefault(writer, UncommittedRows()).add(rows, _open_savepoints(session))


def _open_savepoints(session: Session) -> list[SessionTransaction]:
    savepoints, scope = [], session.get_nested_transaction()
    while scope is not None:
        savepoints.append(scope)
        scope = scope.parent
    return savepoints


@event.listens_for(Session, "before_commit")
def _write_rows(session: Session) -> None:
    if session.in_nested_transaction():
        return
    uncommitted: dict[Writer, UncommittedRows] = session.info.get(_UNCOMMITTED, {})
    if uncommitted:
        session.flush()
    session.info[_COMMITTING] = True
    written: list[tuple[Writer, Connection, list[Row]]] = []
    for writer, rows in uncommitted.items():
        if rows:
            connection = session.connection(bind_arguments=writer.bind_arguments())
            writer.write(connection, taken := rows.take())
            written.append((writer, connection, taken))
    session.info[_WRITTEN] = written


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    if session.in_nested_transaction():
        session.info[_RELEASED] = session.get_nested_transaction()
    else:
        for writer, connection, rows in session.info.pop(_WRITTEN, ()):
            writer.committed(connection, rows)


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, scope: SessionTransaction) -> None:
    """Discard the rows of a savepoint that was not released, and of a transaction that ended."""
    if scope.nested and session.info.pop(_RELEASED, None) is not scope:
        for rows in session.info.get(_UNCOMMITTED, {}).values():
            rows.roll_back_to(scope)
    if scope.parent is None:
        for key in (_UNCOMMITTED, _COMMITTING, _WRITTEN):
            session.info.pop(key, None)

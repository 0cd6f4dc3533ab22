"""Events held by a Session until just before its commit.

The number that orders an aggregate's events is drawn by the INSERT, so the INSERT comes last: a
transaction that numbered its events first could touch the aggregate after another one committed.
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

_HELD: Final = "outrider.held"
_COMMITTING: Final = "outrider.committing"
_WRITTEN: Final = "outrider.written"
_RELEASED: Final = "outrider.released"


def hold(session: Session, writer: Writer, rows: Iterable[Row]) -> int:
    if _COMMITTING in session.info:
        # Recorded by somebody's hook during the last flush; the connection commits after that.
        connection = session.connection(bind_arguments=writer.bind_arguments())
        return connection_hook.hold(connection, writer, rows)
    held: dict[Writer, UncommittedRows] = session.info.setdefault(_HELD, {})
    return held.setdefault(writer, UncommittedRows()).add(rows, _open_savepoints(session))


def _open_savepoints(session: Session) -> list[SessionTransaction]:
    savepoints, scope = [], session.get_nested_transaction()
    while scope is not None:
        savepoints.append(scope)
        scope = scope.parent
    return savepoints


@event.listens_for(Session, "before_commit")
def _write_last(session: Session) -> None:
    if session.in_nested_transaction():
        return
    held: dict[Writer, UncommittedRows] = session.info.get(_HELD, {})
    if held:
        session.flush()
    session.info[_COMMITTING] = True
    written: list[tuple[Writer, Connection, list[Row]]] = []
    for writer, rows in held.items():
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
    """What was not released or committed is undone, however it ended, and so are its events."""
    if scope.nested and session.info.pop(_RELEASED, None) is not scope:
        for rows in session.info.get(_HELD, {}).values():
            rows.roll_back_to(scope)
    if scope.parent is None:
        for key in (_HELD, _COMMITTING, _WRITTEN):
            session.info.pop(key, None)

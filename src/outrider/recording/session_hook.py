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
from outrider.recording.rows import row_of_record
from outrider.recording.uncommitted_rows import UncommittedRows, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection
    from sqlalchemy.orm import SessionTransaction

    from outrider.recording.rows import Row
    from outrider.store.schema.tables import OutboxRecord

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
    uncommitted = _rows_of(session, writer)
    new = uncommitted.add(rows, _open_savepoints(session))
    # SQLAlchemy allows no changes of `session.new` during a flush.
    if writer.is_mapped and not session._flushing:
        uncommitted.show(session, new)
    return len({row.id for row in new})


def writers(session: Session) -> list[Writer]:
    """The outboxes that have rows in this transaction, in the order in which they write them."""
    return list(session.info.get(_UNCOMMITTED, ()))


def shows(session: Session, record: OutboxRecord) -> bool:
    """Whether the record stands for a row that was added before."""
    return any(record in rows for rows in session.info.get(_UNCOMMITTED, {}).values())


def add_record(session: Session, writer: Writer, record: OutboxRecord) -> None:
    """Insert a record of the application with the recorded events, not with the next flush."""
    if _COMMITTING in session.info:
        session.expunge(record)
        add_rows(session, writer, [row_of_record(record)])
    else:
        _rows_of(session, writer).add_record(record, _open_savepoints(session))


def _rows_of(session: Session, writer: Writer) -> UncommittedRows:
    uncommitted: dict[Writer, UncommittedRows] = session.info.setdefault(_UNCOMMITTED, {})
    return uncommitted.setdefault(writer, UncommittedRows())


def _open_savepoints(session: Session) -> list[SessionTransaction]:
    savepoints, scope = [], session.get_nested_transaction()
    while scope is not None:
        savepoints.append(scope)
        scope = scope.parent
    return savepoints


@event.listens_for(Session, "before_flush")
def _take_records(session: Session, *_: object) -> None:
    """The flush would insert the records too early."""
    for rows in session.info.get(_UNCOMMITTED, {}).values():
        rows.take_records(session)


@event.listens_for(Session, "after_transaction_create")
def _take_records_before_savepoint(session: Session, scope: SessionTransaction) -> None:
    """A rollback of the savepoint would expunge the records that were made before it."""
    if scope.nested:
        _take_records(session)


@event.listens_for(Session, "before_commit")
def _write_rows(session: Session) -> None:
    if session.in_nested_transaction():
        return
    uncommitted: dict[Writer, UncommittedRows] = session.info.get(_UNCOMMITTED, {})
    if uncommitted:
        _take_records(session)  # before the flush, which then often has nothing to do
        session.flush()
        _take_records(session)  # those that a hook has added during the flush
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

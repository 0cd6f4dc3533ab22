"""Events held by a Session until just before its commit.

The number that orders an aggregate's events is drawn by the INSERT, so the INSERT comes last: a
transaction that numbered its events first could touch the aggregate after another one committed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from sqlalchemy import event
from sqlalchemy.orm import Session

from outrider.bus import RaisesEvents
from outrider.sql.held import HeldRows, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection
    from sqlalchemy.orm import SessionTransaction

    from outrider.events import Event
    from outrider.sql.rows import Row

COLLECTOR: Final = "outrider.collector"
_HELD: Final = "outrider.held"
_WRITTEN: Final = "outrider.written"


def hold(session: Session, writer: Writer, rows: Iterable[Row]) -> int:
    held: dict[Writer, HeldRows] = session.info.setdefault(_HELD, {})
    return held.setdefault(writer, HeldRows()).add(rows, _open_savepoints(session))


def _open_savepoints(session: Session) -> list[SessionTransaction]:
    savepoints, scope = [], session.get_nested_transaction()
    while scope is not None:
        savepoints.append(scope)
        scope = scope.parent
    return savepoints


def _collect(session: Session) -> None:
    """Record what aggregates raised, in the transaction or savepoint that is open now."""
    if (collector := session.info.get(COLLECTOR)) and (raised := _raised_in(session)):
        collector.record(session, *raised)


def _raised_in(session: Session) -> list[Event]:
    aggregates = chain(session.identity_map.values(), session.new, session.deleted)
    raised = [a.collect_events() for a in aggregates if isinstance(a, RaisesEvents)]
    return list(chain.from_iterable(raised))


@event.listens_for(Session, "before_flush")
def _collect_before_flush(session: Session, *_: object) -> None:
    _collect(session)  # a deleted aggregate is out of reach once it is flushed


@event.listens_for(Session, "before_commit")
def _write_last(session: Session) -> None:
    _collect(session)
    held: dict[Writer, HeldRows] | None = session.info.get(_HELD)
    if not held or session.in_nested_transaction():
        return
    session.flush()
    written: list[tuple[Writer, Connection]] = session.info.setdefault(_WRITTEN, [])
    for writer, rows in held.items():
        if rows:
            connection = session.connection(bind_arguments=writer.bind_arguments())
            writer.write(connection, rows.take())
            written.append((writer, connection))


@event.listens_for(Session, "after_commit")
def _wake(session: Session) -> None:
    if not session.in_nested_transaction():
        for writer, connection in session.info.pop(_WRITTEN, ()):
            writer.wake(connection)


@event.listens_for(Session, "after_transaction_create")
def _collect_before_savepoint(session: Session, scope: SessionTransaction) -> None:
    if scope.nested:
        _collect(session)


@event.listens_for(Session, "after_soft_rollback")
def _forget(session: Session, scope: SessionTransaction) -> None:
    if COLLECTOR in session.info:
        _raised_in(session)  # what was raised since the savepoint is undone with it
    for rows in session.info.get(_HELD, {}).values():
        rows.roll_back_to(scope)


@event.listens_for(Session, "after_transaction_end")
def _end(session: Session, scope: SessionTransaction) -> None:
    """Without a commit the changes are gone, and so are their events."""
    if scope.parent is None:
        session.info.pop(_HELD, None)
        session.info.pop(_WRITTEN, None)

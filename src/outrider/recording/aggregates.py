"""Aggregates that raise events, and the session hook that collects and records those events."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from sqlalchemy import event, inspect
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_dirty

if TYPE_CHECKING:
    from sqlalchemy.orm import SessionTransaction

    from outrider.events.event import Event

COLLECTOR: Final = "outrider.collector"


class RaisesEvents:
    """A mixin for mapped classes.

    Sessions made with `info=outbox.collecting` record the events that their aggregates raise, in
    the transaction or savepoint in which they were raised.
    """

    def raise_event(self, event: Event) -> None:
        self.__dict__.setdefault("_raised_events", []).append(event)
        if inspect(self, raiseerr=False) is not None:
            # A session keeps only weak references to unchanged objects: the events could be lost.
            flag_dirty(self)

    def collect_events(self) -> list[Event]:
        """The events raised since the last call, in order."""
        raised: list[Event] = self.__dict__.pop("_raised_events", [])
        return raised


def _collect(session: Session, *_: object) -> None:
    if (collector := session.info.get(COLLECTOR)) and (raised := _raised_in(session)):
        collector.record(session, *raised)


def _raised_in(session: Session) -> list[Event]:
    aggregates = chain(session.identity_map.values(), session.new, session.deleted)
    raised = [a.collect_events() for a in aggregates if isinstance(a, RaisesEvents)]
    return list(chain.from_iterable(raised))


# Before the flush, since deleted aggregates leave the session with it. After the flush, since
# mapper hooks may raise events during it.
event.listen(Session, "before_flush", _collect)
event.listen(Session, "after_flush", _collect)
event.listen(Session, "before_commit", _collect)


@event.listens_for(Session, "after_transaction_create")
def _collect_before_savepoint(session: Session, scope: SessionTransaction) -> None:
    if scope.nested:
        _collect(session)


@event.listens_for(Session, "after_soft_rollback")
def _discard(session: Session, _scope: SessionTransaction) -> None:
    """Discard the events raised since the last savepoint, which was rolled back."""
    if COLLECTOR in session.info:
        _raised_in(session)


@event.listens_for(Session, "persistent_to_transient")
@event.listens_for(Session, "pending_to_transient")
def _discard_of(session: Session, aggregate: object) -> None:
    """Discard the events of an aggregate whose INSERT was rolled back; it may be added again."""
    if COLLECTOR in session.info and isinstance(aggregate, RaisesEvents):
        aggregate.collect_events()

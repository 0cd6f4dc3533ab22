"""The outbox: records events in the caller's transaction."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
from sqlalchemy import Connection
from sqlalchemy.event import listens_for
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outrider.errors import ConfigurationError
from outrider.events.bus import EventBus
from outrider.events.context import metadata_for
from outrider.events.envelope import REPLACED_FIELDS, EventEnvelope
from outrider.events.event import Event
from outrider.events.strict_json import DEFAULT_LIMITS, Limits, encode_untyped
from outrider.lanes import encode_lanes
from outrider.observability.safe_signals import SafeSignals
from outrider.recording import connection_hook, session_hook
from outrider.recording.aggregates import COLLECTOR
from outrider.recording.routing import Routes
from outrider.recording.rows import Row, insert, row_of
from outrider.signals import EventsRecorded
from outrider.store.schema.tables import (
    OutboxRecord,
    OutboxTables,
    check_tables,
    map_outbox,
    mapped_tables,
)
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from sqlalchemy import Engine, Table

    from outrider.signals import OnSignal

    Target = (
        AsyncSession
        | Session
        | AsyncConnection
        | Connection
        | async_scoped_session[AsyncSession]
        | scoped_session[Session]
    )


class Recorded(int):
    """The number of recorded events. An `await` in front of it is allowed and does nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, int]:
        yield from ()
        return int(self)


def _at_least_one(max_retries: int | None) -> int | None:
    if max_retries is not None and max_retries < 1:
        raise ConfigurationError(f"max_retries must be at least 1, not {max_retries}")
    return max_retries


class Outbox:
    """Writes events in the caller's transaction: changes and events commit together, or neither.

    One statement inserts all rows just before the commit, after every other write. After the
    commit, relays are woken up. Routes decide which sinks get an event; each sink gets a row.
    """

    def __init__(
        self,
        tables: OutboxTables | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        wake_up: bool = True,
        routes: Routes | Mapping[str, str | Sequence[str]] | None = None,
        max_retries: int | None = None,
        on_signal: OnSignal | None = None,
    ) -> None:
        self._on_signal, self._safe_signals = on_signal, SafeSignals()
        check_tables(tables, "Outbox")
        self.tables = tables or OutboxTables()
        self.routes = routes if isinstance(routes, Routes) else Routes(routes)
        self.limits = limits
        self.wake_up = wake_up
        self._max_retries = _at_least_one(max_retries)

    def record(
        self, target: Target, *events: Event | EventEnvelope, max_retries: int | None = None
    ) -> Recorded:
        """Record events in the transaction of a session or connection; nothing is sent yet.

        After `max_retries` refusals these events count as failed, instead of the relay's limit.
        """
        sync = _sync_of(target)
        limit = self._max_retries if max_retries is None else _at_least_one(max_retries)
        rows: list[Row] = []
        for event in events:
            envelope = self._envelope(event)
            rows += [row_of(envelope, sink, limit) for sink in self.routes.of(envelope.event_type)]
        self._check_transaction(sync)
        if isinstance(sync, Session):
            return Recorded(session_hook.add_rows(sync, self, rows))
        return Recorded(connection_hook.add_rows(sync, self, rows))

    def flush(self, target: Target, bus: EventBus, /, **context: object) -> Recorded:
        """Record all events of a bus. Adds envelope fields and `context` to each payload.

        There they win over fields of the event with the same name; see `with_context`. A bus keeps
        its events unless all of them were recorded.
        """
        if not isinstance(bus, EventBus):
            raise TypeError(
                f"expected an EventBus, got {type(bus).__name__}: to record events, write "
                "outbox.record(session, *events)"
            )
        events = bus.collect()
        try:
            envelopes = [with_context(self._envelope(e), context, self.limits) for e in events]
            return self.record(target, *envelopes) if envelopes else Recorded(0)
        except BaseException:
            for event in events:
                bus.emit(event)
            raise

    def _envelope(self, event: Event | EventEnvelope) -> EventEnvelope:
        if isinstance(event, EventEnvelope):
            return event
        if not isinstance(event, Event):
            raise _no_event(event)
        return event.to_envelope(metadata_for(event.event_type), limits=self.limits)

    def _check_transaction(self, target: Session | Connection) -> None:
        if not target.in_transaction():
            raise ConfigurationError(
                "events are recorded inside a transaction, and there is none: begin one, or "
                "record after the first change and before the commit"
            )
        if isinstance(target, Session):
            _refuse_autocommit(target.get_bind(clause=self.tables.outbox))
        else:
            _refuse_autocommit(target)

    @property
    def collecting(self) -> dict[str, Outbox]:
        """For `sessionmaker(info=…)`: its sessions also record the events of their aggregates."""
        return {COLLECTOR: self}

    @property
    def is_mapped(self) -> bool:
        """Whether OutboxRecord is mapped onto this outbox."""
        mapped = mapped_tables()
        return mapped is not None and mapped.outbox.fullname == self.tables.outbox.fullname

    def bind_arguments(self) -> dict[str, Table]:
        return {"clause": self.tables.outbox}

    def write(self, connection: Connection, rows: list[Row]) -> None:
        _refuse_autocommit(connection)
        insert(connection, self.tables.names, rows)

    def committed(self, connection: Connection, rows: list[Row]) -> None:
        if self.wake_up:
            lanes = {row.lane for row in rows}
            notifier = notifier_for(connection.engine, self.tables.names.channel)
            notifier.notify(encode_lanes(lanes))
        if self._on_signal is not None:
            types = {row.id: row.event_type for row in rows}
            recorded = EventsRecorded(events=Counter(types.values()))
            self._safe_signals.send(self._on_signal, recorded)


class OutboxEventDispatcher:
    """Binds an outbox to one session, for use cases that only call `dispatch`."""

    def __init__(self, session: Target, outbox: Outbox | None = None) -> None:
        self._session = session
        self._outbox = outbox or DEFAULT_OUTBOX
        if mapped_tables() is None:
            map_outbox(self._outbox.tables)

    def dispatch(self, events: Iterable[Event]) -> Recorded:
        """Add one `OutboxRecord` per event to the session. Neither flushes nor commits it."""
        if isinstance(events, Event | EventEnvelope):
            raise TypeError("dispatch takes a list: write dispatch([event])")
        return self._outbox.record(self._session, *events)


DEFAULT_OUTBOX: Final = Outbox()
_outbox_of: Final = lru_cache(Outbox)


@listens_for(Session, "transient_to_pending")
def _added(session: Session, added: object) -> None:
    if isinstance(added, OutboxRecord) and not session_hook.shows(session, added):
        # The last one, so that the record comes after all events that were recorded before it.
        writers = [session.info.get(COLLECTOR), *session_hook.writers(session)]
        mapped = [writer for writer in writers if writer and writer.is_mapped]
        writer = mapped[-1] if mapped else _outbox_of(mapped_tables())
        session_hook.add_record(session, writer, added)


def with_context(
    envelope: EventEnvelope, context: Mapping[str, object], limits: Limits
) -> EventEnvelope:
    """Copy envelope fields and context into the payload, for consumers that read only the payload.

    They win over fields of the event with the same name; `to_event` still gives the event as it
    was, since the payload keeps its own values as `replaced_fields`.
    """
    own = msgspec.json.decode(envelope.data, type=dict[str, msgspec.Raw])
    given = {
        "event_type": envelope.event_type,
        "aggregate_type": envelope.aggregate_type,
        "aggregate_id": envelope.aggregate_id,
        "timestamp": envelope.occurred_at,
        **context,
    }
    encoded = encode_untyped(given, envelope.event_type, limits)
    added = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    added = {name: value for name, value in added.items() if not _is_same(value, own.get(name))}
    if added.keys() & own.keys():
        names = {REPLACED_FIELDS, *added} & own.keys()
        added[REPLACED_FIELDS] = msgspec.Raw(msgspec.json.encode({n: own[n] for n in names}))
    data = msgspec.json.encode({**own, **added})
    limits.check_size(data, envelope.event_type)
    return envelope.with_metadata(
        msgspec.structs.replace(
            metadata := envelope.metadata,
            added_fields=",".join(sorted(added)),
            user_id=metadata.user_id or _text(context.get("user_id")),
            correlation_id=metadata.correlation_id or _text(context.get("request_id")),
        ),
        data,
    )


def _is_same(value: msgspec.Raw, own: msgspec.Raw | None) -> bool:
    return own is not None and bool(msgspec.json.decode(value) == msgspec.json.decode(own))


def _no_event(given: object) -> TypeError:
    kind = type(given).__name__
    if isinstance(given, type):
        return TypeError(f"expected an event, got the class {given.__name__}: make an instance")
    if isinstance(given, list | tuple | set):
        return TypeError(f"expected an event, got {kind}: write record(session, *events)")
    return TypeError(
        f"expected an event, got {kind}: make one with "
        'DomainEvent("order.placed", "order", order_id, {…}), or with an event class of your own'
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _sync_of(target: Target) -> Session | Connection:
    if isinstance(target, scoped_session | async_scoped_session):
        target = target()
    if isinstance(target, AsyncSession):
        return target.sync_session
    if isinstance(target, AsyncConnection):
        if target.sync_connection is None:
            raise ConfigurationError("events are recorded on a connection that has been opened")
        return target.sync_connection
    if not isinstance(target, Session | Connection):
        raise TypeError(
            f"expected a session or a connection, got {type(target).__name__}: write "
            "async with AsyncSession(engine) as session, session.begin(): …"
        )
    return target


def _refuse_autocommit(bind: Engine | Connection) -> None:
    level = bind.get_execution_options().get("isolation_level")
    if (level or getattr(bind.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT":
        raise ConfigurationError(
            "events cannot be recorded in AUTOCOMMIT mode: there is no transaction to join"
        )

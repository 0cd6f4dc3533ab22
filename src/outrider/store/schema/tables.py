"""The tables as SQLAlchemy Core, on their own MetaData or on that of the application."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

import msgspec
from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    event,
    false,
    inspect,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import registry
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from outrider.errors import ConfigurationError, InvalidEvent
from outrider.events.codec import parse_payload
from outrider.events.context import current_metadata
from outrider.events.envelope import EventEnvelope, EventMetadata
from outrider.events.ids import EventId
from outrider.events.strict_json import JsonObject, check_payload
from outrider.lanes import LANES, aggregate_key
from outrider.ports import DEFAULT_SINK
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Dialect
    from sqlalchemy.schema import SchemaItem
    from sqlalchemy.sql.compiler import SQLCompiler

PENDING: Final = "pending"
PUBLISHED: Final = "published"
FAILED: Final = "failed"
DISCARDED: Final = "discarded"
MAX_ATTEMPTS_KEPT: Final = 10
"""How many refused attempts of an event its row remembers."""
MAX_ATTEMPT_CHARS: Final = 500
"""How much of its reason a remembered attempt keeps; `last_error` has the last one in full."""
# The text that SQLAlchemy stores for a datetime in SQLite; it sorts by time.
SQLITE_NOW: Final = "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))"


class DatabaseNow(FunctionElement[datetime]):
    """The present time of the database's clock, not the start of the transaction."""

    inherit_cache = True


@compiles(DatabaseNow)
def _postgresql_now(_element: DatabaseNow, _compiler: SQLCompiler, **_options: object) -> str:
    return "clock_timestamp()"


@compiles(DatabaseNow, "sqlite")
def _sqlite_now(_element: DatabaseNow, _compiler: SQLCompiler, **_options: object) -> str:
    return SQLITE_NOW


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in every database; SQLite, which has no zones, stores it as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        return value.replace(tzinfo=UTC)


_TABLES: Final = "outrider.tables"
_AUTOVACUUM: Final = DDL(  # type: ignore[no-untyped-call]
    "ALTER TABLE %(fullname)s SET (autovacuum_vacuum_scale_factor = 0.01, "
    "autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02)"
)
_Json = JSON().with_variant(JSONB(), "postgresql")
_NullableJson = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
_Position = BigInteger().with_variant(Integer(), "sqlite")


class OutboxTables:
    """All tables of one outbox. A test proves that migrations create the same tables."""

    def __init__(
        self, names: OutboxNames | None = None, *, metadata: MetaData | None = None
    ) -> None:
        self.names = names or OutboxNames()
        self.metadata = metadata if metadata is not None else MetaData()
        self.outbox = self._outbox()
        self.outbox.info[_TABLES] = self
        self.lanes = self._table(
            "lanes",
            Column("sink", Text, primary_key=True),
            Column("lane", SmallInteger, primary_key=True, autoincrement=False),
            Column("owner", Uuid),
            Column("token", BigInteger, nullable=False, server_default=text("0")),
            Column("expires_at", UtcDateTime),
        )
        self.relays = self._table(
            "relays",
            Column("id", Uuid, primary_key=True),
            Column("name", Text, nullable=False),
            Column("sink", Text, nullable=False),
            Column("started_at", UtcDateTime, nullable=False),
            Column("expires_at", UtcDateTime, nullable=False),
        )
        self.sinks = self._table(
            "sinks",
            Column("sink", Text, primary_key=True),
            Column("last_delivery_number", BigInteger, nullable=False, server_default=text("0")),
            Column("parks", Boolean, nullable=False, server_default=false()),
        )
        self.processed = self._table(
            "processed",
            Column("event_id", Uuid, primary_key=True),
            Column("handler_name", Text, primary_key=True),
            Column("processed_at", UtcDateTime, nullable=False, server_default=DatabaseNow()),
        )
        Index(self.names.all["processed_index"], self.processed.c.processed_at)
        self.actions = self._table(
            "actions",
            Column("id", _Position, Identity(always=True), primary_key=True),
            Column("at", UtcDateTime, nullable=False, server_default=DatabaseNow()),
            Column("who", Text, nullable=False),
            Column("action", Text, nullable=False),
            Column("filter", Text, nullable=False),
            Column("events", BigInteger, nullable=False, server_default=text("0")),
            Column("reached", BigInteger),
            Column("finished_at", UtcDateTime),
            sqlite_autoincrement=True,
        )
        self.version = self._table(
            "version",
            Column("version", Integer, primary_key=True, autoincrement=False),
            Column("applied_at", UtcDateTime, nullable=False, server_default=DatabaseNow()),
        )

    def _table(self, key: str, *parts: SchemaItem, sqlite_autoincrement: bool = False) -> Table:
        return Table(
            self.names.all[key],
            self.metadata,
            *parts,
            schema=self.names.schema,
            sqlite_autoincrement=sqlite_autoincrement,
        )

    def _outbox(self) -> Table:
        table = self._table(
            "outbox",
            Column("position", _Position, Identity(always=True), primary_key=True),
            Column("id", Uuid, nullable=False),
            Column("sink", Text, nullable=False, server_default=text(f"'{DEFAULT_SINK}'")),
            Column("lane", SmallInteger, nullable=False),
            Column("aggregate_key", BigInteger, nullable=False),
            Column("event_type", Text, nullable=False),
            Column("event_version", Integer, nullable=False, server_default=text("1")),
            Column("aggregate_type", Text, nullable=False),
            Column("aggregate_id", Text, nullable=False),
            Column("payload", _Json, nullable=False),
            Column("metadata", _Json, nullable=False, server_default=text("'{}'")),
            Column("occurred_at", UtcDateTime, nullable=False),
            Column("created_at", UtcDateTime, nullable=False, server_default=DatabaseNow()),
            Column("status", Text, nullable=False, server_default=text(f"'{PENDING}'")),
            Column("retry_count", Integer, nullable=False, server_default=text("0")),
            Column("crash_count", Integer, nullable=False, server_default=text("0")),
            # NULL leaves the limit to the relay, whose default is 10.
            Column("max_retries", Integer),
            Column("next_retry_at", UtcDateTime),
            Column("last_error", Text),
            Column("published_at", UtcDateTime),
            Column("delivery_number", BigInteger),
            Column("attempts", _NullableJson),
            # An event has one row for each of its sinks.
            UniqueConstraint("id", "sink"),
            sqlite_autoincrement=True,
        )
        self._add_indexes(table)
        event.listen(table, "after_create", _AUTOVACUUM.execute_if(dialect="postgresql"))
        return table

    def _add_indexes(self, table: Table) -> None:
        names, c = self.names.all, table.c
        pending = f"status = '{PENDING}'"
        # A claim scans each lane of the relay from its low-water mark. On SQLite, one relay usually
        # leases all lanes, so the index has no lane.
        by_lane = _partial_index(names["pending_index"], pending, c.sink, c.lane, c.position)
        by_lane.ddl_if(dialect="postgresql")
        by_sink = _partial_index(names["pending_index"], pending, c.sink, c.position)
        by_sink.ddl_if(dialect="sqlite")
        # These find older pending events of an aggregate, and events that wait for a retry. Their
        # conditions do not use the status: if no event was pending at the last ANALYZE, PostgreSQL
        # would choose the index above instead, and scan all its dead entries.
        by_aggregate = (c.aggregate_key, c.position)
        _partial_index(names["aggregate_index"], "published_at IS NULL", *by_aggregate)
        _partial_index(names["waiting_index"], "next_retry_at IS NOT NULL", *by_aggregate)
        # For readers of delivered events, and to delete the oldest published events first.
        delivered = "delivery_number IS NOT NULL"
        _partial_index(names["delivered_index"], delivered, c.sink, c.delivery_number)
        # For parked aggregates, which wait behind a failed event, and for lists of failed events.
        _partial_index(names["failed_index"], f"status = '{FAILED}'", *by_aggregate)


def check_tables(tables: object, owner: str) -> None:
    if tables is not None and not isinstance(tables, OutboxTables):
        raise ConfigurationError(
            f"{owner} takes OutboxTables, not {type(tables).__name__}: for names of your own, "
            "write OutboxTables(OutboxNames(…))"
        )


def _partial_index(name: str, condition: str, *columns: ColumnElement[object]) -> Index:
    where = text(condition)
    return Index(name, *columns, postgresql_where=where, sqlite_where=where)


_WRITTEN_BY_PRODUCERS: Final = frozenset(
    ("aggregate_type", "aggregate_id", "sink", "event_version", "max_retries")
)


def _current_metadata() -> JsonObject:
    return cast("JsonObject", msgspec.to_builtins(current_metadata()))


@dataclass(kw_only=True, eq=False)
class OutboxRecord:
    """One row of the outbox as an ORM object: to write an event by hand, to read and to repair.

    A new one needs a type, a payload (JSON text is fine, too) and the time of occurrence. Without
    an aggregate it is an aggregate of its own. Add it to a session: until the next flush it is in
    `session.new`, and can be changed or expunged there. It is inserted just before the commit, like
    recorded events.
    """

    event_type: str
    payload: JsonObject = field(repr=False)
    occurred_at: datetime
    id: UUID = field(default_factory=EventId.new)
    aggregate_type: str = ""
    aggregate_id: str = ""
    lane: int = field(init=False)
    aggregate_key: int = field(init=False)
    position: int | None = None
    sink: str = DEFAULT_SINK
    event_version: int = 1
    metadata: JsonObject = field(default_factory=_current_metadata, repr=False)
    created_at: datetime | None = None
    status: str = PENDING
    retry_count: int = 0
    crash_count: int = 0
    max_retries: int | None = None
    next_retry_at: datetime | None = None
    last_error: str | None = None
    published_at: datetime | None = None
    delivery_number: int | None = None
    attempts: list[JsonObject] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        given: object = self.payload
        if isinstance(given, str):
            self.payload = parse_payload(given, str(self.event_type))
        self.aggregate_type = self.aggregate_type or str(self.event_type).partition(".")[0]
        given = self.id if self.aggregate_id == "" else self.aggregate_id
        self.aggregate_id = str(given) if isinstance(given, UUID | int) else self.aggregate_id
        self.checked_envelope()
        key = aggregate_key(self.sink, self.aggregate_type, self.aggregate_id)
        self.lane, self.aggregate_key = key % LANES, key

    def checked_envelope(self) -> EventEnvelope:
        """The event of a new record; raises InvalidEvent if a field cannot be stored."""
        for name, default in _WRITTEN_BY_RELAYS.items():
            if getattr(self, name) not in (default, None):
                raise InvalidEvent(
                    f"{self.event_type}: {name}: the relay writes it; leave it out of a new record"
                )
        if self.max_retries is not None and self.max_retries < 1:
            raise InvalidEvent(f"{self.event_type}: max_retries: must be at least 1")
        own_id: object = self.id
        if not isinstance(own_id, UUID):
            kind = type(own_id).__name__
            raise InvalidEvent(f"{self.event_type}: id: expected UUID, got {kind}: write EventId()")
        check_payload(self.payload, self.event_type)
        return EventEnvelope(
            event_id=self.id,
            event_type=self.event_type,
            event_version=self.event_version,
            aggregate_type=self.aggregate_type,
            aggregate_id=self.aggregate_id,
            occurred_at=self.occurred_at,
            payload=self.payload,
            metadata=_metadata_of(self),
        )


_WRITTEN_BY_RELAYS: Final = {
    each.name: each.default
    for each in fields(OutboxRecord)
    if each.default is not MISSING and each.name not in _WRITTEN_BY_PRODUCERS
}


def _metadata_of(record: OutboxRecord) -> EventMetadata:
    try:
        return msgspec.convert(record.metadata, EventMetadata)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"{record.event_type}: metadata: {error}") from None


def mapped_tables() -> OutboxTables | None:
    """The tables that OutboxRecord is mapped onto; None before `map_outbox`."""
    mapped = inspect(OutboxRecord, raiseerr=False)
    return None if mapped is None else mapped.local_table.info.get(_TABLES)


def map_outbox(tables: OutboxTables | None = None, mapper_registry: registry | None = None) -> None:
    """Map OutboxRecord onto the table; a second call changes nothing."""
    table = (tables or OutboxTables()).outbox
    mapped = inspect(OutboxRecord, raiseerr=False)
    if mapped is None:
        (mapper_registry or registry()).map_imperatively(OutboxRecord, table)
    elif mapped.local_table.fullname != table.fullname:
        raise ConfigurationError(
            f"OutboxRecord is mapped onto {mapped.local_table.fullname}, not {table.fullname}"
        )

"""The tables as SQLAlchemy Core, on a metadata of their own or on the application's."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID  # noqa: TC003 - SQLAlchemy reads the annotations of mapped classes

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
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
    inspect,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import registry
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from outrider.errors import ConfigurationError
from outrider.ports import DEFAULT_SINK
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect
    from sqlalchemy.schema import SchemaItem
    from sqlalchemy.sql.compiler import SQLCompiler

PENDING: Final = "pending"
PUBLISHED: Final = "published"
FAILED: Final = "failed"
DISCARDED: Final = "discarded"
# The text form that SQLAlchemy gives a datetime in SQLite; it sorts as time does.
SQLITE_NOW: Final = "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))"


class _Now(FunctionElement[datetime]):
    """The database's clock, which runs on inside a transaction."""

    inherit_cache = True


@compiles(_Now)
def _postgresql_now(_element: _Now, _compiler: SQLCompiler, **_options: Any) -> str:
    return "clock_timestamp()"


@compiles(_Now, "sqlite")
def _sqlite_now(_element: _Now, _compiler: SQLCompiler, **_options: Any) -> str:
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


_AUTOVACUUM: Final = DDL(  # type: ignore[no-untyped-call]
    "ALTER TABLE %(fullname)s SET (autovacuum_vacuum_scale_factor = 0.01, "
    "autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02)"
)
_Json = JSON().with_variant(JSONB(), "postgresql")
_Position = BigInteger().with_variant(Integer(), "sqlite")


class OutboxTables:
    """All tables of one outbox. The migrations are the truth; a test keeps the two the same."""

    def __init__(
        self, names: OutboxNames | None = None, *, metadata: MetaData | None = None
    ) -> None:
        self.names = names or OutboxNames()
        self.metadata = metadata if metadata is not None else MetaData()
        self.outbox = self._outbox()
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
        )
        self.processed = self._table(
            "processed",
            Column("event_id", Uuid, primary_key=True),
            Column("handler_name", Text, primary_key=True),
            Column("processed_at", UtcDateTime, nullable=False, server_default=_Now()),
        )
        Index(self.names.all["processed_index"], self.processed.c.processed_at)
        self.actions = self._table(
            "actions",
            Column("id", _Position, Identity(always=True), primary_key=True),
            Column("at", UtcDateTime, nullable=False, server_default=_Now()),
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
            Column("applied_at", UtcDateTime, nullable=False, server_default=_Now()),
        )

    def _table(self, key: str, *parts: SchemaItem, **options: Any) -> Table:
        return Table(
            self.names.all[key], self.metadata, *parts, schema=self.names.schema, **options
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
            Column("created_at", UtcDateTime, nullable=False, server_default=_Now()),
            Column("status", Text, nullable=False, server_default=text(f"'{PENDING}'")),
            Column("retry_count", Integer, nullable=False, server_default=text("0")),
            Column("crash_count", Integer, nullable=False, server_default=text("0")),
            Column("max_retries", Integer),
            Column("next_retry_at", UtcDateTime),
            Column("last_error", Text),
            Column("published_at", UtcDateTime),
            Column("delivery_number", BigInteger),
            # One event goes to several sinks as so many rows; with one sink, id is the key.
            UniqueConstraint("id", "sink"),
            sqlite_autoincrement=True,
        )
        self._add_indexes(table)
        event.listen(table, "after_create", _AUTOVACUUM.execute_if(dialect="postgresql"))
        return table

    def _add_indexes(self, table: Table) -> None:
        names, c = self.names.all, table.c
        pending = _where(f"status = '{PENDING}'")
        # A claim walks the relay's lanes, each from the position it has settled up to; SQLite,
        # where one relay has them all, needs no lanes in its index.
        by_lane = Index(names["pending_index"], c.sink, c.lane, c.position, **pending)
        by_lane.ddl_if(dialect="postgresql")
        Index(names["pending_index"], c.sink, c.position, **pending).ddl_if(dialect="sqlite")
        # Is there an older pending event of the same aggregate? And does one wait for its retry?
        # Their conditions say nothing of the state: where nothing was pending when PostgreSQL
        # looked last, it would prefer to walk over all dead entries of the index above.
        not_out = _where("published_at IS NULL")
        Index(names["aggregate_index"], c.aggregate_key, c.position, **not_out)
        waiting = _where("next_retry_at IS NOT NULL")
        Index(names["waiting_index"], c.aggregate_key, c.position, **waiting)
        # For readers that resume, and for forgetting the oldest first.
        Index(
            names["delivered_index"],
            c.sink,
            c.delivery_number,
            **_where("delivery_number IS NOT NULL"),
        )
        # Which aggregates are parked behind a failed event, and what people should look at.
        Index(names["failed_index"], c.aggregate_key, c.position, **_where(f"status = '{FAILED}'"))


def _where(condition: str) -> dict[str, Any]:
    return {"postgresql_where": text(condition), "sqlite_where": text(condition)}


@dataclass(kw_only=True)
class OutboxRecord:
    """One row of the outbox, for reading and for repair through the ORM."""

    id: UUID
    lane: int
    aggregate_key: int
    event_type: str
    aggregate_type: str
    aggregate_id: str
    payload: dict[str, Any] = field(repr=False)
    occurred_at: datetime
    position: int | None = None
    sink: str = DEFAULT_SINK
    event_version: int = 1
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    created_at: datetime | None = None
    status: str = PENDING
    retry_count: int = 0
    crash_count: int = 0
    max_retries: int | None = None
    next_retry_at: datetime | None = None
    last_error: str | None = None
    published_at: datetime | None = None
    delivery_number: int | None = None


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

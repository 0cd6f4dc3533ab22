"""The transactional inbox: the mark and the effect of a handler commit together, or neither."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, event, exists, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession

from outrider.consumer.handler_runner import HandlerMisbehaved
from outrider.consumer.scopes import ObjectScope, current_scope, use_scope
from outrider.errors import ConfigurationError, DatabaseUnavailable
from outrider.store.engines import check_engine
from outrider.store.schema.problems import is_missing_table
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
    from sqlalchemy.orm import Session

    from outrider.events.envelope import EventEnvelope

# Transient errors, for which a later retry of the whole transaction may succeed: serialization
# failures, deadlocks, locks, connections, resources, a server that stops, starts or is a standby. A
# cancelled statement (57014) is not among them: it may be too slow every time.
_TRANSIENT_CODES: Final = (
    *("08", "25006", "40001", "40P01", "53", "55P03", "57P", "58"),
    *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN"),
)
# Unknown tables and columns, missing privileges: a person must fix these.
_SCHEMA_CODES: Final = ("42", "SQLITE_ERROR", "SQLITE_READONLY")
_DELETE_STEP_ROWS: Final = 10_000


class SqlInbox:
    """Inserts a mark (event, handler) in the transaction of the handler's session, before it runs.

    A second delivery at the same time waits for the first, and is skipped if the first commits. A
    crash undoes both mark and effect. The session comes from `sessions`, and a handler gets it as
    a parameter of type AsyncSession; without `sessions`, it comes from the handler's scope. A
    handler may commit as its last step, which commits its writes and the mark together. A handler
    that rolls back or closes the session loses both, and counts as failed.
    """

    def __init__(
        self,
        sessions: Callable[[], AsyncSession] | None = None,
        tables: OutboxTables | None = None,
    ) -> None:
        if sessions is not None and not callable(sessions):
            raise ConfigurationError(
                f"SqlInbox takes a session factory, not {type(sessions).__name__}: write "
                "SqlInbox(async_sessionmaker(engine))"
            )
        self._sessions = sessions
        self._tables = tables or OutboxTables()
        self._table = self._tables.processed
        self._marks = _Marks(self._table)

    @asynccontextmanager
    async def once(self, envelope: EventEnvelope, handler_name: str, /) -> AsyncIterator[bool]:
        with _translate_handler_errors():
            async with self._session() as session:
                first = await self._mark(session, envelope.event_id, handler_name)
                with _guard_mark(session):
                    yield first
                if first:
                    await session.commit()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        """Opens the session; rolls back whatever is not committed at the end."""
        scope = current_scope()
        if self._sessions is not None:
            async with self._sessions() as session:
                with use_scope(ObjectScope({AsyncSession: session}, scope)):
                    yield session
        elif scope is not None:
            session = await scope.get(AsyncSession)
            if session.in_transaction():
                raise ConfigurationError(
                    "the inbox must come first: the session it got has begun a transaction already"
                )
            try:
                yield session
            finally:
                await session.rollback()
        else:
            raise ConfigurationError(
                "the inbox needs the handler's transaction, and there is none: give it sessions, "
                "or run the handler in a scope that has an AsyncSession"
            )

    async def _mark(self, session: AsyncSession, event_id: UUID, handler_name: str) -> bool:
        """Mark the event as processed; returns False if it was marked before."""
        with _translate_own_errors(self._tables):
            connection = await session.connection(bind_arguments={"clause": self._table})
            await connection.run_sync(_refuse_autocommit)
            return await self._marks.add(connection, event_id, handler_name)


@contextmanager
def _guard_mark(session: AsyncSession) -> Iterator[None]:
    """Raise if the handler rolled back the transaction that holds its mark."""
    sync, committed = session.sync_session, False
    transaction = sync.get_transaction()

    def on_commit(ended: Session) -> None:
        nonlocal committed
        # SQLAlchemy calls this hook for released savepoints too.
        committed |= not ended.in_nested_transaction()

    event.listen(sync, "after_commit", on_commit)
    try:
        yield
    finally:
        event.remove(sync, "after_commit", on_commit)
    if not committed and not (sync.get_transaction() is transaction and sync.is_active):
        raise HandlerMisbehaved(
            "rolled back or closed the session it was given, so its mark is gone; "
            "undo with session.begin_nested() what may fail"
        )


class SqlProcessedEvents:
    """The table of the SQL inbox as a ProcessedEventStore; each call has its own transaction."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        check_engine(engine, "SqlProcessedEvents")
        self._engine = engine
        self._tables = tables or OutboxTables()
        self._table = self._tables.processed
        self._marks = _Marks(self._table)

    async def contains(self, event_id: UUID, handler_name: str, /) -> bool:
        c = self._table.c
        mark = exists().where(c.event_id == event_id, c.handler_name == handler_name)
        with _translate_own_errors(self._tables):
            async with self._engine.connect() as connection:
                return bool(await connection.scalar(select(mark)))

    async def mark(self, event_id: UUID, handler_name: str, /) -> None:
        with _translate_own_errors(self._tables):
            async with self._engine.begin() as connection:
                await self._marks.add(connection, event_id, handler_name)

    async def delete_before(self, moment: datetime, /) -> int:
        """Delete in small steps, so that no lock is held for long."""
        age, deleted = self._table.c.processed_at, 0
        end_of_step = (
            select(age).where(age < moment).order_by(age).offset(_DELETE_STEP_ROWS - 1).limit(1)
        )
        while True:
            with _translate_own_errors(self._tables):
                async with self._engine.begin() as connection:
                    end = await connection.scalar(end_of_step)
                    # By age, which has an index; by key, each step would scan the whole table.
                    old = age < moment if end is None else age <= end
                    deleted += (await connection.execute(delete(self._table).where(old))).rowcount
            if end is None:
                return deleted


class _Marks:
    """The statement that inserts a mark; built once, since building takes longer than running."""

    def __init__(self, table: Table) -> None:
        # RETURNING tells a new mark from an old one, since not every driver counts inserted rows.
        self._inserts = {
            name: kind.insert(table).on_conflict_do_nothing().returning(table.c.event_id)
            for name, kind in (("postgresql", postgresql), ("sqlite", sqlite))
        }

    async def add(self, connection: AsyncConnection, event_id: UUID, handler_name: str) -> bool:
        """Insert a mark; returns False if it existed before."""
        row = {"event_id": event_id, "handler_name": handler_name}
        return await connection.scalar(self._inserts[connection.dialect.name], row) is not None


def _refuse_autocommit(connection: Connection) -> None:
    """In AUTOCOMMIT mode, a mark would stay although its handler failed."""
    driver = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        began = getattr(connection.connection.driver_connection, "in_transaction", False)
        autocommit = getattr(driver, "isolation_level", "") is None and not began
    else:
        autocommit = getattr(driver, "autocommit", False)
    if autocommit:
        raise ConfigurationError("the inbox needs a transaction; its session is in AUTOCOMMIT mode")


@contextmanager
def _translate_own_errors(tables: OutboxTables) -> Iterator[None]:
    """Around the inbox's own statements, whose errors are never the fault of the event."""
    try:
        yield
    except Exception as error:
        code = _code(error)
        if code is None and not isinstance(error, DBAPIError | OSError | PoolTimeout):
            raise
        if is_missing_table(error):
            missing = f"the inbox's table {tables.processed.fullname} is missing"
            raise ConfigurationError(f"{missing}; {tables.names.cure()}") from None
        if code is not None and code.startswith(_SCHEMA_CODES):
            refusal = f"the database refuses ({_name(error)}); {tables.names.cure('check')}"
            raise ConfigurationError(refusal) from None
        raise DatabaseUnavailable(_name(error)) from None


@contextmanager
def _translate_handler_errors() -> Iterator[None]:
    """Around the handler: translates transient errors only; all others are the handler's own."""
    try:
        yield
    except DBAPIError as error:
        code = _code(error)
        lost = error.connection_invalidated or isinstance(error, OperationalError)
        if code.startswith(_TRANSIENT_CODES) if code else lost:
            raise DatabaseUnavailable(_name(error)) from None
        raise


def _code(error: BaseException | None) -> str | None:
    """The SQLSTATE, or SQLite's error name, from the first layer that has it."""
    while error is not None:
        for name in ("sqlstate", "sqlite_errorname"):
            if code := getattr(error, name, None):
                return str(code)
        error = error.orig if isinstance(error, DBAPIError) else error.__cause__
    return None


def _name(error: Exception) -> str:
    """Class and code only: the server's own text may quote a row."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(filter(None, (type(original).__name__, _code(error))))

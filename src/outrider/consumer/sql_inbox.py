"""The inbox in the handler's own database: mark and effect commit together, or neither does."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, event, exists, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession

from outrider.consumer.handler_runner import HandlerMisbehaved
from outrider.consumer.scopes import GivenScope, current_scope, within
from outrider.errors import ConfigurationError, DatabaseUnavailable
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
    from sqlalchemy.orm import Session

    from outrider.events.envelope import EventEnvelope

# What may go well if the whole unit of work is repeated later: serialization failures, deadlocks,
# locks, connections, resources, a server that is going, coming, or a standby for now. A statement
# that was cancelled (57014) is not among them: it may be too slow every time.
_PASSING: Final = (
    *("08", "25006", "40001", "40P01", "53", "55P03", "57P", "58"),
    *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN"),
)
# Unknown tables and columns, missing privileges.
_NEEDS_A_PERSON: Final = ("42", "SQLITE_ERROR", "SQLITE_READONLY")
_STEP: Final = 10_000


class SqlInbox:
    """Inserts (event, handler) first, in the transaction of the handler's session.

    A second delivery at the same moment waits for the first, and is skipped if that commits; a
    crash undoes mark and effect alike. The session comes from `sessions`, and handlers get it by
    asking for an AsyncSession; without `sessions`, it is the one that the handler's scope has.
    A handler may commit as its last act: what it wrote and the mark go together. If it rolls
    back or closes the session, the mark is gone with its writes, and it counts as failed.
    """

    def __init__(
        self,
        sessions: Callable[[], AsyncSession] | None = None,
        tables: OutboxTables | None = None,
    ) -> None:
        self._sessions = sessions
        self._table = (tables or OutboxTables()).processed
        self._marks = _Marks(self._table)

    @asynccontextmanager
    async def once(self, envelope: EventEnvelope, handler_name: str, /) -> AsyncIterator[bool]:
        with _handlers_work():
            async with self._session() as session:
                first = await self._mark(session, envelope.event_id, handler_name)
                with _watched(session):
                    yield first
                if first:
                    await session.commit()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        """Whatever is not committed at its end is undone."""
        scope = current_scope()
        if self._sessions is not None:
            async with self._sessions() as session:
                with within(GivenScope({AsyncSession: session}, scope)):
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
        """Whether nobody had done so before."""
        with _own_work():
            connection = await session.connection(bind_arguments={"clause": self._table})
            await connection.run_sync(_refuse_autocommit)
            return await self._marks.add(connection, event_id, handler_name)


@contextmanager
def _watched(session: AsyncSession) -> Iterator[None]:
    """Notices that a handler has undone the transaction which holds its mark."""
    sync, committed = session.sync_session, False
    transaction = sync.get_transaction()

    def on_commit(ended: Session) -> None:
        nonlocal committed
        # The end of a savepoint is reported as a commit, too.
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
    """The same table as a plain store, each call in a transaction of its own."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        self._engine = engine
        self._table = (tables or OutboxTables()).processed
        self._marks = _Marks(self._table)

    async def contains(self, event_id: UUID, handler_name: str, /) -> bool:
        c = self._table.c
        mark = exists().where(c.event_id == event_id, c.handler_name == handler_name)
        with _own_work():
            async with self._engine.connect() as connection:
                return bool(await connection.scalar(select(mark)))

    async def mark(self, event_id: UUID, handler_name: str, /) -> None:
        with _own_work():
            async with self._engine.begin() as connection:
                await self._marks.add(connection, event_id, handler_name)

    async def delete_before(self, moment: datetime, /) -> int:
        """In small steps, so that no lock is held for long."""
        age, deleted = self._table.c.processed_at, 0
        end_of_step = select(age).where(age < moment).order_by(age).offset(_STEP - 1).limit(1)
        while True:
            with _own_work():
                async with self._engine.begin() as connection:
                    end = await connection.scalar(end_of_step)
                    # By age and not by key, for which the whole table would be read each time.
                    old = age < moment if end is None else age <= end
                    deleted += (await connection.execute(delete(self._table).where(old))).rowcount
            if end is None:
                return deleted


class _Marks:
    """How an event is marked; built once, since that takes longer than running it."""

    def __init__(self, table: Table) -> None:
        # What is returned tells a new mark from an old one: not every driver counts inserted rows.
        self._inserts = {
            name: kind.insert(table).on_conflict_do_nothing().returning(table.c.event_id)
            for name, kind in (("postgresql", postgresql), ("sqlite", sqlite))
        }

    async def add(self, connection: AsyncConnection, event_id: UUID, handler_name: str) -> bool:
        """Whether it was not there before."""
        row = {"event_id": event_id, "handler_name": handler_name}
        return await connection.scalar(self._inserts[connection.dialect.name], row) is not None


def _refuse_autocommit(connection: Connection) -> None:
    """There, a mark would stay when its handler fails."""
    driver = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        began = getattr(connection.connection.driver_connection, "in_transaction", False)
        autocommit = getattr(driver, "isolation_level", "") is None and not began
    else:
        autocommit = getattr(driver, "autocommit", False)
    if autocommit:
        raise ConfigurationError("the inbox needs a transaction; its session is in AUTOCOMMIT mode")


@contextmanager
def _own_work() -> Iterator[None]:
    """Around what the inbox itself does: no fault in there is the event's."""
    try:
        yield
    except Exception as error:
        code = _code(error)
        if code is None and not isinstance(error, DBAPIError | OSError | PoolTimeout):
            raise
        if code is not None and code.startswith(_NEEDS_A_PERSON):
            refusal = f"the database refuses ({_name(error)}); run `outrider schema check`"
            raise ConfigurationError(refusal) from None
        raise DatabaseUnavailable(_name(error)) from None


@contextmanager
def _handlers_work() -> Iterator[None]:
    """Around what the handler does with the session: its own faults stay what they are."""
    try:
        yield
    except DBAPIError as error:
        code = _code(error)
        lost = error.connection_invalidated or isinstance(error, OperationalError)
        if code.startswith(_PASSING) if code else lost:
            raise DatabaseUnavailable(_name(error)) from None
        raise


def _code(error: BaseException | None) -> str | None:
    """SQLSTATE or SQLite's name for it, from whichever layer has it."""
    while error is not None:
        for name in ("sqlstate", "sqlite_errorname"):
            if code := getattr(error, name, None):
                return str(code)
        error = error.orig if isinstance(error, DBAPIError) else error.__cause__
    return None


def _name(error: Exception) -> str:
    """Class and code only: the server's own text may quote a row."""
    said = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(filter(None, (type(said).__name__, _code(error))))

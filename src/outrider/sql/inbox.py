"""The inbox in the handler's own database: mark and effect commit together, or neither does."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, event, exists, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from outrider.errors import ConfigurationError, DatabaseUnavailable
from outrider.scopes import GivenScope, current_scope, within
from outrider.sql.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection, Table
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
    from sqlalchemy.orm import Session

    from outrider.envelope import EventEnvelope

# The same unit of work may succeed when it is repeated: serialization failure, deadlock, lock
# not available, and everything that says that the server is going away or not there yet.
_PASSING: Final = ("40001", "40P01", "55P03", "08", "53", "57")
_STEP: Final = 10_000


class SqlInbox:
    """Inserts (event, handler) first, in the transaction of the handler's session.

    A second delivery at the same moment waits for the first and is skipped if that commits; a
    crash undoes mark and effect alike. The session is that of the scope, or one of its own
    from `sessions`, which handlers get by asking for an AsyncSession. A handler may commit
    itself, once: its writes and the mark go together. If it rolls back or closes the session,
    the mark is gone with its writes, and it counts as failed.
    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSession] | None = None,
        tables: OutboxTables | None = None,
    ) -> None:
        self._sessions = sessions
        self._table = (tables or OutboxTables()).processed

    @asynccontextmanager
    async def once(self, envelope: EventEnvelope, handler_name: str, /) -> AsyncIterator[bool]:
        try:
            async with AsyncExitStack() as stack:
                session = await self._session(stack)
                watch = _Watch(session)
                first = await self._mark(session, envelope.event_id, handler_name)
                yield first
                if first:
                    watch.check(handler_name)
                    await session.commit()
                else:
                    await session.rollback()
        except DBAPIError as error:
            if _may_pass(error):
                state = _sqlstate(error)
                name = f"{type(error.orig).__name__} {state or ''}".rstrip()
                raise DatabaseUnavailable(name) from None
            raise

    async def _session(self, stack: AsyncExitStack) -> AsyncSession:
        scope = current_scope()
        if self._sessions is not None:
            session = await stack.enter_async_context(self._sessions())
            stack.enter_context(within(GivenScope({AsyncSession: session}, scope)))
            return session
        if scope is None:
            raise ConfigurationError(
                "the inbox needs the handler's transaction, and there is none: give it sessions, "
                "or run the handler in a scope that has an AsyncSession"
            )
        return await scope.get(AsyncSession)

    async def _mark(self, session: AsyncSession, event_id: UUID, handler_name: str) -> bool:
        """Whether nobody had done so before."""
        if session.in_transaction():
            raise ConfigurationError(
                "the inbox must come first: the session it got has begun a transaction already"
            )
        connection = await session.connection(bind_arguments={"clause": self._table})
        return await connection.run_sync(insert_mark, self._table, event_id, handler_name)


class _Watch:
    """Notices that a handler ends the transaction which holds its mark."""

    def __init__(self, session: AsyncSession) -> None:
        self._rolled_back = self._committed = False
        event.listen(session.sync_session, "after_commit", self._on_commit)
        event.listen(session.sync_session, "after_rollback", self._on_rollback)

    def _on_commit(self, _session: Session) -> None:
        self._committed = True

    def _on_rollback(self, _session: Session) -> None:
        self._rolled_back = not self._committed

    def check(self, handler_name: str) -> None:
        if self._rolled_back:
            raise RuntimeError(
                f"{handler_name} rolled back or closed the session it was given: its mark is gone"
            )


class SqlProcessedEvents:
    """The same table as a plain store, each call in a transaction of its own."""

    def __init__(self, engine: AsyncEngine, tables: OutboxTables | None = None) -> None:
        self._engine = engine
        self._table = (tables or OutboxTables()).processed

    async def contains(self, event_id: UUID, handler_name: str, /) -> bool:
        c = self._table.c
        mark = exists().where(c.event_id == event_id, c.handler_name == handler_name)
        async with self._engine.connect() as connection:
            return bool(await connection.scalar(select(mark)))

    async def mark(self, event_id: UUID, handler_name: str, /) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(insert_mark, self._table, event_id, handler_name)

    async def delete_before(self, moment: datetime, /) -> int:
        """In small steps, so that no lock is held for long."""
        c, deleted = self._table.c, 0
        oldest = select(c.event_id, c.handler_name).where(c.processed_at < moment)
        step = oldest.order_by(c.processed_at).limit(_STEP)
        while True:
            async with self._engine.begin() as connection:
                gone = await connection.execute(
                    delete(self._table).where(tuple_(c.event_id, c.handler_name).in_(step))
                )
            deleted += gone.rowcount
            if gone.rowcount < _STEP:
                return deleted


def insert_mark(connection: Connection, table: Table, event_id: UUID, handler_name: str) -> bool:
    """Whether it was not there before."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    row = {"event_id": event_id, "handler_name": handler_name}
    # No conflict target: naming one would need more privileges than INSERT.
    mark = dialect.insert(table).values(row).on_conflict_do_nothing()
    return connection.execute(mark).rowcount == 1


def _may_pass(error: DBAPIError) -> bool:
    """Whether the fault is the database's and not the handler's."""
    state = _sqlstate(error)
    if state is not None:
        return state.startswith(_PASSING)
    return error.connection_invalidated or isinstance(error, OperationalError)


def _sqlstate(error: DBAPIError) -> str | None:
    for said in (error.orig, getattr(error.orig, "__cause__", None)):
        state = getattr(said, "sqlstate", None) or getattr(said, "pgcode", None)
        if state:
            return str(state)
    return None

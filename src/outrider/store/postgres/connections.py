"""The connection pool: few connections, each call with a timeout, none reused after an error."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider.errors import ConfigurationError, DatabaseUnavailable
from outrider.store.engines import describe
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from asyncpg import Connection, Record

T = TypeVar("T")

_ABORT_DELAY_S: Final = 0.5

# What an administrator must cure by hand: unknown tables and columns, missing privileges.
_NEEDS_A_PERSON: Final = (asyncpg.SyntaxOrAccessError,)
_DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    DBAPIError,
    OSError,
    TimeoutError,
)


class ConnectionPool:
    """Lends asyncpg connections, made the way the application's engine makes its own."""

    def __init__(
        self, engine: AsyncEngine, timeout: timedelta, names: OutboxNames | None = None
    ) -> None:
        sync = engine.sync_engine
        if sync.dialect.name != "postgresql" or sync.dialect.driver != "asyncpg":
            raise ConfigurationError("a relay on PostgreSQL needs postgresql+asyncpg://")
        # Connects as the application does, but never takes a connection that a request waits for.
        self._engine = AsyncEngine(Engine(sync.pool.recreate(), sync.dialect, sync.url))
        self._timeout_s = timeout.total_seconds()
        self._names = names or OutboxNames()
        self._idle: list[Connection[Record]] = []
        self._aborting: set[Connection[Record]] = set()
        self.behind_pooler = False
        """Whether a transaction pooler lies between. Statements that belong together must be one
        transaction then, since any other statement may reach another server process."""

    async def run(self, work: Callable[[Connection[Record]], Awaitable[T]]) -> T:
        connection = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._idle.pop() if self._idle else await self.connect()
                result = await self._work(connection, work)
        except BaseException as error:
            # A late reply must not be taken for the answer to the next query.
            self.abort(connection)
            if isinstance(error, _DATABASE_ERRORS):
                if connection is None:
                    raise self._no_connection(error) from None
                raise translated(error, self._names) from None
            raise
        self._idle.append(connection)
        return result

    async def _work(
        self, connection: Connection[Record], work: Callable[[Connection[Record]], Awaitable[T]]
    ) -> T:
        if not self.behind_pooler:
            return await work(connection)
        async with connection.transaction():
            return await work(connection)

    def _no_connection(self, error: Exception) -> DatabaseUnavailable:
        """With the server's own words, which quote no row before anything was asked."""
        reason = str(_cause(error)).partition("\n")[0] or f"no answer within {self._timeout_s:g} s"
        return DatabaseUnavailable(f"cannot connect to {describe(self._engine.url)}: {reason}")

    async def connect(self) -> Connection[Record]:
        """A connection outside of the pool; the caller closes it."""
        connection = await self._engine.connect()
        raw = await connection.get_raw_connection()
        driver_connection: Connection[Record] | None = raw.driver_connection
        if driver_connection is None:
            raise DatabaseUnavailable("the connection was closed while it was being opened")
        raw.detach()
        return driver_connection

    def abort(self, connection: Connection[Record] | None) -> None:
        if connection is not None:
            # Leaves asyncpg the time to have the server cancel the statement that was given up.
            self._aborting.add(connection)
            asyncio.get_running_loop().call_later(_ABORT_DELAY_S, self._terminate, connection)
        # If one connection is broken, the others probably are too.
        while self._idle:
            self._idle.pop().terminate()

    def _terminate(self, connection: Connection[Record]) -> None:
        self._aborting.discard(connection)
        connection.terminate()

    async def close(self) -> None:
        for connection in tuple(self._aborting):
            self._terminate(connection)
        for connection in self._idle:
            with suppress(*_DATABASE_ERRORS):
                await connection.close(timeout=1)
        self._idle.clear()
        await self._engine.dispose()


def translated(error: Exception, names: OutboxNames) -> ConfigurationError | DatabaseUnavailable:
    """Class and SQLSTATE only: the server's own text may quote a row."""
    error = _cause(error)
    state = getattr(error, "sqlstate", None)
    name = f"{type(error).__name__}{f' {state}' if state else ''}"
    if isinstance(error, asyncpg.UndefinedTableError):
        return ConfigurationError(f"the tables of the outbox are missing; {names.cure()}")
    if isinstance(error, _NEEDS_A_PERSON):
        return ConfigurationError(f"the database refuses ({name}); {names.cure('check')}")
    return DatabaseUnavailable(name)


def _cause(error: Exception) -> Exception:
    """The driver's own error; SQLAlchemy 2.1 wraps what a connect raises."""
    if isinstance(error, DBAPIError):
        return getattr(error.orig, "__cause__", None) or error
    return error

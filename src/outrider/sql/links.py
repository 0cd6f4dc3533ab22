"""Connections of the store's own: few, each call with a deadline, none used again after trouble."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider.errors import ConfigurationError, DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg import Connection

T = TypeVar("T")

_A_MOMENT: Final = 0.5  # seconds

# What an administrator must cure by hand: unknown tables and columns, missing privileges.
_NEEDS_A_PERSON: Final = (asyncpg.SyntaxOrAccessError,)
_TROUBLE: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    DBAPIError,
    OSError,
    TimeoutError,
)


class Links:
    """Lends asyncpg connections, made the way the application's engine makes its own."""

    def __init__(self, engine: AsyncEngine, deadline: float) -> None:
        sync = engine.sync_engine
        if sync.dialect.name != "postgresql" or sync.dialect.driver != "asyncpg":
            raise ConfigurationError("a relay on PostgreSQL needs postgresql+asyncpg://")
        # The same way of connecting, but never a connection that a request waits for.
        self._engine = AsyncEngine(Engine(sync.pool.recreate(), sync.dialect, sync.url))
        self._deadline = deadline
        self._idle: list[Any] = []
        self._ending: set[Any] = set()
        self.pooled = False
        """Whether a transaction pooler lies between: what belongs together must be a transaction,
        since every other statement may meet another server process."""

    async def run(self, work: Callable[[Connection[Any]], Awaitable[T]]) -> T:
        link = None
        try:
            async with asyncio.timeout(self._deadline):
                link = self._idle.pop() if self._idle else await self.connect()
                result = await self._work(link, work)
        except BaseException as error:
            # A reply may still be on its way; it must not meet the next question.
            self.drop(link)
            if isinstance(error, _TROUBLE):
                raise translated(error) from None
            raise
        self._idle.append(link)
        return result

    async def _work(self, link: Any, work: Callable[[Connection[Any]], Awaitable[T]]) -> T:
        if not self.pooled:
            return await work(link)
        async with link.transaction():
            return await work(link)

    async def connect(self) -> Any:
        connection = await self._engine.connect()
        raw = await connection.get_raw_connection()
        link = raw.driver_connection
        raw.detach()
        return link

    def drop(self, link: Any) -> None:
        if link is not None:
            # The driver has the server cancel what was given up, if it is left the time.
            self._ending.add(link)
            asyncio.get_running_loop().call_later(_A_MOMENT, self._end, link)
        # If one is broken, the others probably are too.
        while self._idle:
            self._idle.pop().terminate()

    def _end(self, link: Any) -> None:
        self._ending.discard(link)
        link.terminate()

    async def close(self) -> None:
        for link in tuple(self._ending):
            self._end(link)
        for link in self._idle:
            with suppress(*_TROUBLE):
                await link.close(timeout=1)
        self._idle.clear()
        await self._engine.dispose()


def translated(error: Exception) -> ConfigurationError | DatabaseUnavailable:
    """Class and SQLSTATE only: the server's own text may quote a row."""
    if isinstance(error, DBAPIError):  # from SQLAlchemy 2.1 on, around what a connect raises
        error = getattr(error.orig, "__cause__", None) or error
    state = getattr(error, "sqlstate", None)
    name = f"{type(error).__name__}{f' {state}' if state else ''}"
    if isinstance(error, _NEEDS_A_PERSON):
        return ConfigurationError(f"the database refuses ({name}); run `outrider schema check`")
    return DatabaseUnavailable(name)

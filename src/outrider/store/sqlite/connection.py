"""One SQLite connection in its own thread, and the translation of its errors."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outrider.errors import ConfigurationError, DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.store.schema.names import OutboxNames

T = TypeVar("T")
_IN_MEMORY: Final = (None, "", ":memory:")


class SqliteConnection:
    """A connection to the file of the application's engine, opened at first use."""

    def __init__(self, engine: AsyncEngine, timeout: timedelta, names: OutboxNames) -> None:
        if engine.url.database in _IN_MEMORY:
            raise ConfigurationError(
                "an in-memory SQLite database cannot be shared; give it a file"
            )
        self.file = str(engine.url.database)
        self._timeout_s = timeout.total_seconds()
        self._names = names
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outrider-sqlite")
        self._connection: sqlite3.Connection | None = None

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction, which takes the write lock when it begins."""

        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # a full disk has rolled it back already
                    db.execute("ROLLBACK")
                raise
            return result

        return await self._run(transaction)

    async def read(self, statement: str, parameters: Mapping[str, object]) -> list[Any]:
        """The rows of one statement. It does not wait for writers."""
        return await self._run(lambda db: db.execute(statement, parameters).fetchall())

    async def close(self) -> None:
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
            self._connection = None
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)

    def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            self._connection = self._connection or self._connect()
            return work(self._connection)
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                raise ConfigurationError(f"{error}; {self._names.cure()}") from None
            if "no such" in str(error):
                raise ConfigurationError(f"{error}; {self._names.cure('check')}") from None
            raise DatabaseUnavailable(f"SQLite: {error.sqlite_errorname}") from None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.file, timeout=self._timeout_s, isolation_level=None)
        # WAL: readers do not wait for the writer. FULL: a committed event survives a power cut.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)

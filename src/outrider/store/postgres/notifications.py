"""LISTEN on a PostgreSQL channel, with a self-test that tells whether notifications arrive."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from outrider.errors import OutriderError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.store.postgres.connections import ConnectionPool

_PROBE_INTERVAL_S: Final = 5.0
_SELF_TEST_S: Final = 2.0
_RECONNECT_DELAY_S: Final = 1.0


class NotificationListener:
    """Calls `on_notify` with the payload of every notification, from `open` to `close`."""

    def __init__(
        self, pool: ConnectionPool, channel: str, on_notify: Callable[[str], None]
    ) -> None:
        self._pool, self._channel, self._on_notify = pool, channel, on_notify
        self._received = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> bool:
        """Returns whether notifications arrive; if not, listening is tried again and again."""
        self._task = asyncio.create_task(self._listen(), name="outrider-listen")
        # A transaction pooler swallows LISTEN silently, so one notification is sent to ourselves.
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(_SELF_TEST_S):
                await self._received.wait()
                self._received.clear()
                await self._pool.run(
                    lambda connection: connection.execute("SELECT pg_notify($1, '')", self._channel)
                )
                await self._received.wait()
                return True
        return False

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self) -> None:
        """Listen until cancelled; a query now and then finds a connection that died silently."""
        while True:
            connection = None
            try:
                async with asyncio.timeout(_PROBE_INTERVAL_S):
                    connection = await self._pool.connect()
                    await connection.add_listener(self._channel, self._notified)
                self._received.set()
                while True:
                    await asyncio.sleep(_PROBE_INTERVAL_S)
                    await connection.fetchval("SELECT 1", timeout=_PROBE_INTERVAL_S)
            except asyncio.CancelledError:
                raise
            except Exception:  # noqa: BLE001 - polling goes on; listening is tried again
                await asyncio.sleep(_RECONNECT_DELAY_S)
            finally:
                if connection is not None:
                    connection.terminate()

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._received.set()
        self._on_notify(str(payload))

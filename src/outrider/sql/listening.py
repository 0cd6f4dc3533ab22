"""Listening on a PostgreSQL channel, and knowing whether notifications arrive at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from outrider.errors import OutriderError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.sql.links import Links

_PROBE: Final = 5.0
_SELF_TEST: Final = 2.0


class Ears:
    """Calls `hear` with the word of every notification on a channel, from `open` to `close`."""

    def __init__(self, links: Links, channel: str, hear: Callable[[str], None]) -> None:
        self._links, self._channel, self._hear = links, channel, hear
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> bool:
        """Whether notifications arrive; if not, it goes on trying."""
        self._task = asyncio.create_task(self._listen(), name="outrider-listen")
        # A pooler swallows LISTEN without a word, so one notification is sent to ourselves.
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(_SELF_TEST):
                await self._heard.wait()
                self._heard.clear()
                await self._links.run(
                    lambda link: link.execute("SELECT pg_notify($1, '')", self._channel)
                )
                await self._heard.wait()
                return True
        return False

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self) -> None:
        """Until cancelled; a connection that died quietly is found by asking it."""
        while True:
            link = None
            try:
                async with asyncio.timeout(_PROBE):
                    link = await self._links.connect()
                    await link.add_listener(self._channel, self._on_notify)
                self._heard.set()
                while True:
                    await asyncio.sleep(_PROBE)
                    await link.fetchval("SELECT 1", timeout=_PROBE)
            except asyncio.CancelledError:
                raise
            except Exception:  # noqa: BLE001 - polling goes on; listening is tried again
                await asyncio.sleep(1)
            finally:
                if link is not None:
                    link.terminate()

    def _on_notify(self, _link: object, _pid: int, _channel: str, word: str) -> None:
        self._heard.set()
        self._hear(word)

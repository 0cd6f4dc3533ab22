"""One client's stream: where it is, what it wants, and the text that it gets next."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from outrider.events.envelope import EventEnvelope
from outrider.stream import frames

if TYPE_CHECKING:
    from outrider.stream.config import StreamConfig
    from outrider.stream.window import Item, Window

Wanted = Callable[[EventEnvelope], bool]
"""Whether a client is to see the event."""
Since = int | Literal["now", "start"]
"""The number of the last event seen; or the next that comes; or the oldest that is kept."""

_CHUNK: Final = 64 * 1024


class Tail(Protocol):
    """What all streams of a process share. The table may be slow to answer, but it does."""

    window: Window
    config: StreamConfig

    async def read(self, after: int, /) -> list[Item]: ...
    async def bounds(self) -> tuple[int, int]: ...
    def leave(self, stream: Stream, /) -> None: ...


class Stream:
    """Iterate over it to get text for the client, at least once in every `keep_alive`.

    A stream is a cursor: it takes what follows from the window, or from the table if the window
    begins later. So a client that resumes or falls behind meets each event once, and waits in
    nobody's memory.
    """

    def __init__(self, tail: Tail, wanted: tuple[Wanted, ...], since: Since) -> None:
        self.wanted = wanted
        """An event goes out if all of these let it pass; may be replaced while it runs."""
        self._tail, self._since = tail, since
        self._cursor, self._told = -1, -1
        self._ahead: deque[Item] = deque()
        self._next: asyncio.Task[bytes] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        if self._next is None:
            self._next = asyncio.create_task(self._text(), name="outrider-stream")
        # Not a timeout: what it waits for goes on behind the comment that is sent meanwhile.
        await asyncio.wait({self._next}, timeout=self._tail.config.keep_alive.total_seconds())
        if not self._next.done():
            return self._keep_alive()
        if self._next.cancelled():
            raise StopAsyncIteration
        text, self._next = self._next.result(), None
        return text

    def end(self) -> None:
        """Nothing more comes; safe to call twice."""
        self._ended = True
        if self._next is not None:
            self._next.cancel()

    async def aclose(self) -> None:
        """Make room for another client."""
        self._tail.leave(self)
        self.end()
        if self._next is not None:
            await asyncio.gather(self._next, return_exceptions=True)

    def _keep_alive(self) -> bytes:
        moved = self._cursor > self._told
        self._told = self._cursor
        return frames.keep_alive(self._cursor if moved else None)

    async def _text(self) -> bytes:
        """What comes next, however long that takes."""
        if self._cursor < 0:
            return await self._begin()
        window = self._tail.window
        while True:
            if text := self._wanted_text():
                return text
            changed = window.changed
            items = window.after(self._cursor, self._tail.config.batch_size)
            if items is None:
                if text := await self._read_table():
                    return text
            elif items:
                self._ahead.extend(items)
            else:
                await changed.wait()

    async def _begin(self) -> bytes:
        since, newest = self._since, self._tail.window.newest
        if since == "now":
            since = newest
        elif since == "start":
            oldest, _ = await self._tail.bounds()
            since = oldest - 1
        elif since > newest:
            _, newest = await self._tail.bounds()
        self._cursor = self._told = since
        wait = self._tail.config.retry * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secret
        text = frames.opening(round(wait.total_seconds() * 1000), since)
        # Only a database that was set back knows less than a client has seen.
        return text + self._skip_to(newest + 1, newest) if since > newest else text

    async def _read_table(self) -> bytes:
        """Take the next page; the text is empty, unless something between was forgotten."""
        page = await self._tail.read(self._cursor)
        self._ahead.extend(page)
        expected = self._cursor + 1
        if page and page[0].delivery_number == expected:
            return b""
        oldest, newest = await self._tail.bounds()
        if oldest > expected:
            return self._skip_to(page[0].delivery_number if page else oldest, newest)
        if not page:
            await self._tail.window.changed.wait()
        return b""

    def _skip_to(self, oldest: int, newest: int) -> bytes:
        requested, self._cursor = self._cursor, oldest - 1
        self._told = self._cursor
        return frames.gap(requested, oldest, newest)

    def _wanted_text(self) -> bytes:
        """Of what lies ahead, as much as makes a fair portion."""
        texts, size = [], 0
        while self._ahead and size < _CHUNK:
            item = self._ahead.popleft()
            self._cursor = item.delivery_number
            if all(wants(item.envelope) for wants in self.wanted):
                self._told = item.delivery_number
                texts.append(item.frame)
                size += len(item.frame)
        return b"".join(texts)

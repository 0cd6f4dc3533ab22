"""The stream of one client: its cursor, its filters, and the text to send next."""

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
"""Whether a client may get the event."""
Since = int | Literal["now", "start"]
"""Start after this delivery number, at the next new event, or at the oldest stored event."""

_CHUNK_BYTES: Final = 64 * 1024


class EventFeed(Protocol):
    """The events that all streams of a process share: a window in memory, and the table.

    `read` and `bounds` wait, with backoff, while the database is unavailable.
    """

    window: Window
    config: StreamConfig

    async def read(self, after: int, /) -> list[Item]: ...
    async def bounds(self) -> tuple[int, int]: ...
    def disconnect(self, stream: Stream, /) -> None: ...


class Stream:
    """Iterate over it to get text for the client, at least once per `keep_alive`.

    A stream is a cursor. It reads the next events from the window, or from the table if the window
    starts later. So a client that resumes or falls behind gets each event once, and events for a
    slow client are not buffered in memory.
    """

    def __init__(self, feed: EventFeed, wanted: tuple[Wanted, ...], since: Since) -> None:
        self.wanted = wanted
        """An event is sent if all of these accept it; may be replaced while the stream runs."""
        self._feed, self._since = feed, since
        self._cursor, self._sent_number = -1, -1
        self._unsent: deque[Item] = deque()
        self._next: asyncio.Task[bytes] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        if self._next is None:
            self._next = asyncio.create_task(self._text(), name="outrider-stream")
        # Not a timeout: the task goes on waiting for events while a keep-alive comment is sent.
        await asyncio.wait({self._next}, timeout=self._feed.config.keep_alive.total_seconds())
        if not self._next.done():
            return self._keep_alive()
        if self._next.cancelled():
            raise StopAsyncIteration
        text, self._next = self._next.result(), None
        return text

    def end(self) -> None:
        """End the iteration; safe to call twice."""
        self._ended = True
        if self._next is not None:
            self._next.cancel()

    async def aclose(self) -> None:
        """End the stream and make room for another client."""
        self._feed.disconnect(self)
        self.end()
        if self._next is not None:
            await asyncio.gather(self._next, return_exceptions=True)

    def _keep_alive(self) -> bytes:
        moved = self._cursor > self._sent_number
        self._sent_number = self._cursor
        return frames.keep_alive(self._cursor if moved else None)

    async def _text(self) -> bytes:
        """Wait for the next text to send."""
        if self._cursor < 0:
            return await self._begin()
        window = self._feed.window
        while True:
            if text := self._wanted_text():
                return text
            changed = window.changed
            items = window.after(self._cursor, self._feed.config.batch_size)
            if items is None:
                if text := await self._read_table():
                    return text
            elif items:
                self._unsent.extend(items)
            else:
                await changed.wait()

    async def _begin(self) -> bytes:
        since, newest = self._since, self._feed.window.newest
        if since == "now":
            since = newest
        elif since == "start":
            oldest, _ = await self._feed.bounds()
            since = oldest - 1
        elif since > newest:
            _, newest = await self._feed.bounds()
        self._cursor = self._sent_number = since
        wait = self._feed.config.retry * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secret
        text = frames.opening(round(wait.total_seconds() * 1000), since)
        # A client is ahead of the database only if the database was restored from a backup.
        return text + self._skip_to(newest + 1, newest) if since > newest else text

    async def _read_table(self) -> bytes:
        """Read the next page from the table; returns a gap message if events were deleted."""
        page = await self._feed.read(self._cursor)
        self._unsent.extend(page)
        expected = self._cursor + 1
        if page and page[0].delivery_number == expected:
            return b""
        oldest, newest = await self._feed.bounds()
        if oldest > expected:
            return self._skip_to(page[0].delivery_number if page else oldest, newest)
        if not page:
            await self._feed.window.changed.wait()
        return b""

    def _skip_to(self, oldest: int, newest: int) -> bytes:
        requested, self._cursor = self._cursor, oldest - 1
        self._sent_number = self._cursor
        return frames.gap(requested, oldest, newest)

    def _wanted_text(self) -> bytes:
        """The text of unsent events that the client wants, up to about one chunk."""
        texts, size = [], 0
        while self._unsent and size < _CHUNK_BYTES:
            item = self._unsent.popleft()
            self._cursor = item.delivery_number
            if all(wants(item.envelope) for wants in self.wanted):
                self._sent_number = item.delivery_number
                texts.append(item.frame)
                size += len(item.frame)
        return b"".join(texts)

"""The stream manager: reads delivered events once for all clients of this process."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from outrider.errors import BrokerUnavailable, DatabaseUnavailable
from outrider.lifecycle import BackgroundService
from outrider.observability.logging import log_signals
from outrider.relay.backoff import OutageBackoff
from outrider.signals import StoreAvailable, StoreUnavailable
from outrider.stream.client import Since, Stream, Wanted
from outrider.stream.config import StreamConfig
from outrider.stream.frames import Frames
from outrider.stream.shutdown_signals import on_signals
from outrider.stream.window import Item, Window

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from outrider.signals import OnSignal
    from outrider.stream.delivered import DeliveredEvent, DeliveredEvents

T = TypeVar("T")
_PAGE_BYTES: Final = 64 * 1024
_MIN_READ_INTERVAL_S: Final = 0.01  # limits reads, however many notifications arrive


class StreamManager(BackgroundService):
    """Serves the streams of one web process; create one per process. `stop` ends all streams.

    While the database is unavailable, streams stay open; afterwards they go on where they were.
    """

    _grace = timedelta(seconds=5)

    def __init__(
        self,
        events: DeliveredEvents,
        config: StreamConfig | None = None,
        *,
        on_signal: OnSignal | None = log_signals,
    ) -> None:
        super().__init__(on_signal)
        self.config = config or StreamConfig()
        self.window: Window
        self._events = events
        self._write = Frames(self.config.source, self.config.metadata).of
        self._streams: set[Stream] = set()
        self._readers = asyncio.Semaphore(self.config.readers)
        self._woken = asyncio.Event()
        self._backoff = OutageBackoff()
        self._average_bytes = 1.0
        self._read_at = 0.0
        self._open = False

    def connect(self, *wanted: Wanted, since: Since = "now") -> Stream:
        """A stream of the events that all of `wanted` accept; close it with `aclose`.

        Raises BrokerUnavailable if there are too many streams.
        """
        if not self._open:
            raise BrokerUnavailable("the stream is not running")
        if len(self._streams) >= self.config.max_streams:
            raise BrokerUnavailable("no more streams are allowed at once")
        stream = Stream(self, wanted, since)
        self._streams.add(stream)
        return stream

    def disconnect(self, stream: Stream, /) -> None:
        self._streams.discard(stream)

    @property
    def streams(self) -> int:
        """How many clients are connected now."""
        return len(self._streams)

    @property
    def _health_problem(self) -> str | None:
        return "StreamManager: the database does not answer" if self._backoff.active else None

    def _stop_soon(self) -> None:
        self._refuse()
        self._woken.set()

    def _refuse(self) -> None:
        """End all streams, and refuse new ones."""
        self._open = False
        self._end_streams()

    def _end_streams(self) -> None:
        for stream in self._streams:
            stream.end()

    async def _run(self, opened: asyncio.Event) -> None:
        try:
            with on_signals(self._refuse) if self.config.on_signals else nullcontext():
                await self._until_available(self._connect)
                await self._until_available(self._take_position)
                opened.set()
                while not self._stopping.is_set():
                    if not await self._until_available(self._read_new):
                        await self._idle()
        finally:
            self._refuse()
            await self._events.close()

    async def _connect(self) -> None:
        await self._events.open(lambda _source: self._woken.set())

    async def _take_position(self) -> None:
        _, newest = await self._events.bounds()
        self.window = self._window(newest)
        self._open = True

    def _window(self, newest: int) -> Window:
        return Window(newest, self.config.window, self.config.window_bytes)

    async def _read_new(self) -> bool:
        """Read new events into the window; returns whether there may be more at once."""
        self._woken.clear()
        self._read_at = asyncio.get_running_loop().time()
        limit = self._limit
        page = await self._events.after(self.window.newest, limit)
        self.window.add(self._items(page))
        if not page:
            await self._check_restored()
        return len(page) == limit

    async def _check_restored(self) -> None:
        """A database restored from a backup assigns the same numbers again.

        All streams end, so that each client reconnects and is told of the gap.
        """
        _, newest = await self._events.bounds()
        if newest < self.window.newest:
            self.window = self._window(newest)
            self._end_streams()

    async def _idle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.poll_interval.total_seconds()):
                await self._woken.wait()
        # Anybody may send notifications, so reads are limited however many arrive.
        await asyncio.sleep(
            self._read_at + _MIN_READ_INTERVAL_S - asyncio.get_running_loop().time()
        )

    async def read(self, after: int, /) -> list[Item]:
        return self._items(
            await self._read_for_client(lambda: self._events.after(after, self._limit))
        )

    async def bounds(self) -> tuple[int, int]:
        return await self._read_for_client(self._events.bounds)

    @property
    def _limit(self) -> int:
        """How many events make a page of limited size, judging by the last page."""
        return max(1, min(self.config.batch_size, int(_PAGE_BYTES / self._average_bytes)))

    def _items(self, page: Sequence[DeliveredEvent]) -> list[Item]:
        if page:
            size = sum(len(event.envelope.data) for event in page)
            self._average_bytes = max(1.0, size / len(page))
        return [Item(event, self._write) for event in page]

    async def _read_for_client(self, query: Callable[[], Awaitable[T]]) -> T:
        """Repeat a query of one client, with backoff; limits how many run at once."""
        backoff = OutageBackoff()
        async with self._readers:
            while True:
                try:
                    return await query()
                except DatabaseUnavailable:
                    await asyncio.sleep(backoff.next_delay().total_seconds())

    async def _until_available(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat until it succeeds or the manager stops; signals the outage and its end."""
        while not self._stopping.is_set():
            try:
                result = await step()
            except DatabaseUnavailable as error:
                await self._back_off(error)
            else:
                if self._backoff.reset():
                    self._signal(StoreAvailable(sink=self._events.sink))
                return result
        return None

    async def _back_off(self, error: DatabaseUnavailable) -> None:
        wait = self._backoff.next_delay()
        if self._backoff.just_started:
            sink = self._events.sink
            self._signal(StoreUnavailable(sink=sink, reason=str(error), wait=wait))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait.total_seconds()):
                await self._stopping.wait()

"""Waking relays up after a commit: at once, gathered when many follow, and free to fail."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Engine
from sqlalchemy.util import greenlet_spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

_log: Final = logging.getLogger("outrider.wakeup")
# How long to gather what follows a wake-up. A busy producer keeps its relay busy anyway, so that
# waking it up seldom is enough; on a quiet one every event is worth its own.
_GATHER: Final = 0.001
_GATHER_BUSY: Final = 0.025
_BUSY: Final = 300.0  # commits per second
_MEMORY: Final = 0.25  # seconds over which they are counted
_DEADLINE: Final = 2.0
_IDLE: Final = 10.0


class Waker:
    """Tells relays that there is something to do. `notify` costs a microsecond and never raises.

    With PostgreSQL a thread of its own sends NOTIFY on a connection of its own, so that neither
    a request nor its event loop waits, whatever kind of session it used. Relays of the same
    process are called directly; for SQLite that is all.
    """

    def __init__(self, engine: Engine, channel: str) -> None:
        # The same way of connecting, but never a connection that a request waits for.
        self._engine = Engine(engine.pool.recreate(), engine.dialect, engine.url)
        self._channel = channel
        self._listeners: set[Callable[[str], object]] = set()
        self._poked = threading.Event()
        self._pokes = 0
        self._words: deque[str] = deque(maxlen=2)
        self._pid = 0
        self._sends = engine.dialect.name == "postgresql"

    def notify(self, word: str = "") -> None:
        """Those who listen are told the word, or none if several come together."""
        for listener in tuple(self._listeners):
            listener(word)
        if self._sends:
            self._words.append(word)
            self._pokes += 1
            if not self._poked.is_set():
                self._poked.set()
            if self._pid != os.getpid():  # not running, or we are a fork of who runs it
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="outrider-wakeup", daemon=True).start()

    def subscribe(self, listener: Callable[[str], object]) -> Callable[[], None]:
        """Have a callable called, from any thread, at every notify; returns how to end that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _run(self) -> None:
        sender = _Sender(self._engine, self._channel)
        rate, counted, at = 0.0, self._pokes, time.monotonic()
        while self._poked.wait(_IDLE):
            self._poked.clear()
            words = [self._words.popleft() for _ in range(len(self._words))]
            sender.send(words[0] if len(words) == 1 else "")
            pokes, now = self._pokes, time.monotonic()
            weight = min(1.0, (now - at) / _MEMORY)
            rate += ((pokes - counted) / (now - at) - rate) * weight
            counted, at = pokes, now
            # The first went out at once; those that come now share the next one.
            time.sleep(_GATHER_BUSY if rate > _BUSY else _GATHER)
        sender.close()
        self._pid = 0
        if self._poked.is_set():  # poked while we were leaving
            self.notify()


class _Sender:
    """One connection that is made when needed and thrown away when it fails."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._loop = asyncio.new_event_loop() if engine.dialect.is_async else None
        self._connection: Connection | None = None
        self._driver: Any = None
        self._failing = False

    def send(self, word: str) -> None:
        try:
            if self._connection is None:
                self._call(self._connect)
            self._notify(word)
            self._failing = False
        except Exception as error:  # noqa: BLE001 - polling finds what a wake-up missed
            if not self._failing:
                _log.warning("wake-up failed, relays will poll (%s)", type(error).__name__)
            self._failing = True
            self._drop()

    def close(self) -> None:
        self._drop()
        if self._loop is not None:
            self._loop.close()

    def _call(self, work: Callable[[], None]) -> None:
        if self._loop is None:
            work()
        else:
            call = asyncio.wait_for(greenlet_spawn(work), _DEADLINE)
            self._loop.run_until_complete(call)

    def _connect(self) -> None:
        connection = self._engine.connect()
        self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        self._driver = connection.connection.driver_connection

    def _notify(self, word: str) -> None:
        statement = f"NOTIFY \"{self._channel}\", '{word}'"
        if self._loop is None:
            cast("Connection", self._connection).exec_driver_sql(statement)
        else:
            # Past SQLAlchemy: what runs so seldom finds cold caches at every line.
            call = asyncio.wait_for(self._driver.execute(statement), _DEADLINE)
            self._loop.run_until_complete(call)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                self._call(connection.invalidate)
                self._call(connection.close)


_wakers: Final[dict[tuple[str, str], Waker]] = {}
_lock: Final = threading.Lock()


def waker_of(engine: Engine, channel: str) -> Waker:
    """The one waker of a database and channel, however many engines there are."""
    key = (str(engine.url), channel)
    if key not in _wakers:
        with _lock:
            _wakers.setdefault(key, Waker(engine, channel))
    return _wakers[key]

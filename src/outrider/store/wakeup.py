"""Wake-ups: notifies relays after a commit, with debounce; a failure only delays them."""

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
# Debounce: the first notification is sent at once, those of the next moments are merged into one.
# A busy producer keeps its relay busy anyway, so the debounce may be longer.
_DEBOUNCE_S: Final = 0.001
_BUSY_DEBOUNCE_S: Final = 0.025
_BUSY_COMMITS_PER_S: Final = 300.0
_RATE_WINDOW_S: Final = 0.25  # commits per second are averaged over this time
_SEND_TIMEOUT_S: Final = 2.0
_IDLE_TIMEOUT_S: Final = 10.0  # after that the thread ends; the next notification starts it


class Notifier:
    """Wakes relays up. `notify` takes about a microsecond and never raises.

    With PostgreSQL, a separate thread sends NOTIFY on a separate connection, so no request and no
    event loop waits for it. Relays of the same process are called directly. With SQLite, only
    relays of the same process are notified.
    """

    def __init__(self, engine: Engine, channel: str) -> None:
        # A pool with the same settings, but never a connection that a request needs.
        self._engine = Engine(engine.pool.recreate(), engine.dialect, engine.url)
        self._channel = channel
        self._listeners: set[Callable[[str], object]] = set()
        self._requested = threading.Event()
        self._requests = 0
        self._payloads: deque[str] = deque(maxlen=2)
        self._pid = 0
        self._sends = engine.dialect.name == "postgresql"

    def notify(self, payload: str = "") -> None:
        """Send the payload to all listeners; merged notifications have an empty payload."""
        for listener in tuple(self._listeners):
            listener(payload)
        if self._sends:
            self._payloads.append(payload)
            self._requests += 1
            if not self._requested.is_set():
                self._requested.set()
            if self._pid != os.getpid():  # no thread runs, or it runs in the process that forked
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="outrider-wakeup", daemon=True).start()

    def subscribe(self, listener: Callable[[str], object]) -> Callable[[], None]:
        """Call `listener` at every notify, from any thread; returns a function that ends this."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _run(self) -> None:
        sender = _Sender(self._engine, self._channel)
        rate, last_requests, last_time = 0.0, self._requests, time.monotonic()
        while self._requested.wait(_IDLE_TIMEOUT_S):
            self._requested.clear()
            payloads = [self._payloads.popleft() for _ in range(len(self._payloads))]
            sender.send(payloads[0] if len(payloads) == 1 else "")
            requests, now = self._requests, time.monotonic()
            weight = min(1.0, (now - last_time) / _RATE_WINDOW_S)
            rate += ((requests - last_requests) / (now - last_time) - rate) * weight
            last_requests, last_time = requests, now
            time.sleep(_BUSY_DEBOUNCE_S if rate > _BUSY_COMMITS_PER_S else _DEBOUNCE_S)
        sender.close()
        self._pid = 0
        if self._requested.is_set():  # requested between the last wait and this line
            self.notify()


class _Sender:
    """Sends NOTIFY on one connection, which is opened when needed and dropped when it fails."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._loop = asyncio.new_event_loop() if engine.dialect.is_async else None
        self._connection: Connection | None = None
        self._driver: Any = None
        self._was_open = self._failing = False

    def send(self, payload: str) -> None:
        """Send it; on a new connection if the one at hand was cut off since the last time."""
        error = self._try_to_send(payload)
        if error is not None and self._was_open:
            error = self._try_to_send(payload)
        if error is not None and not self._failing:
            _log.warning("wake-up failed, relays will poll (%s)", type(error).__name__)
        self._failing = error is not None

    def _try_to_send(self, payload: str) -> Exception | None:
        self._was_open = self._connection is not None
        try:
            if not self._was_open:
                self._call(self._connect)
            self._notify(payload)
        except Exception as error:  # noqa: BLE001 - polling finds what a wake-up missed
            self._drop()
            return error
        return None

    def close(self) -> None:
        self._drop()
        if self._loop is not None:
            self._loop.close()

    def _call(self, work: Callable[[], None]) -> None:
        if self._loop is None:
            work()
        else:
            call = asyncio.wait_for(greenlet_spawn(work), _SEND_TIMEOUT_S)
            self._loop.run_until_complete(call)

    def _connect(self) -> None:
        connection = self._engine.connect()
        self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        self._driver = connection.connection.driver_connection

    def _notify(self, payload: str) -> None:
        statement = f"NOTIFY \"{self._channel}\", '{payload}'"
        if self._loop is None:
            cast("Connection", self._connection).exec_driver_sql(statement)
        else:
            # Without SQLAlchemy, whose code is slow when it runs this rarely (cold CPU caches).
            call = asyncio.wait_for(self._driver.execute(statement), _SEND_TIMEOUT_S)
            self._loop.run_until_complete(call)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                self._call(connection.invalidate)
                self._call(connection.close)


_notifiers: Final[dict[tuple[str, str], Notifier]] = {}
_lock: Final = threading.Lock()


def notifier_for(engine: Engine, channel: str) -> Notifier:
    """The notifier of this database and channel; all engines of a database share it."""
    key = (str(engine.url), channel)
    if key not in _notifiers:
        with _lock:
            _notifiers.setdefault(key, Notifier(engine, channel))
    return _notifiers[key]

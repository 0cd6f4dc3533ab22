"""Signal handlers: end all streams as soon as the process is asked to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@contextmanager
def on_signals(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` at SIGINT and SIGTERM, and then the handler that was installed before.

    Changes nothing where no handler is installed, or outside of the main thread.
    """
    loop = asyncio.get_running_loop()
    previous: dict[int, Callable[[int, FrameType | None], object]] = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)
        previous[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            if callable(handler := signal.getsignal(number)):
                previous[number] = handler
                signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)

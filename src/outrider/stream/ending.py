"""Learning early that the process is to end."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def on_signals(call: Callable[[], None]) -> Iterator[None]:
    """Call this at SIGINT and SIGTERM, and then whoever handles them already.

    Where nobody does, or outside of the main thread, nothing is changed.
    """
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def heard(number: int, frame: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)
        before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            if callable(known := signal.getsignal(number)):
                before[number] = known
                signal.signal(number, heard)
    try:
        yield
    finally:
        for number, known in before.items():
            if signal.getsignal(number) is heard:
                signal.signal(number, known)

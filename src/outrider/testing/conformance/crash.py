"""A consumer that dies: a process that receives, acknowledges some messages and is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn

from outrider.testing.conformance import timing
from outrider.testing.conformance.receiving import receive_some

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from outrider.ports import EventSource

_DONE: Final = b"done"


async def crash(
    source: Callable[[], EventSource], receive: int, acknowledge: int, adjust: Sequence[int]
) -> None:
    """Fork a consumer, let it `consume`, and kill it.

    A fork needs no pickling of the test's objects.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Forking a process with threads is deprecated: a lock may be held. The deadline shows that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run_child(consume(source(), receive, acknowledge, adjust), writer)
    os.close(writer)
    try:
        async with asyncio.timeout(2 * timing.max_wait_s):
            said = await asyncio.to_thread(os.read, reader, 65_536)
    finally:
        os.kill(child, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, child, 0)
        os.close(reader)
    if said != _DONE:
        raise AssertionError(f"the process failed before it was killed:\n{said.decode()}")


async def consume(
    source: EventSource, receive: int, acknowledge: int, adjust: Sequence[int]
) -> None:
    """Receive, acknowledge, and adjust the crash count of the next message by each of these."""
    await source.open()
    deliveries = await receive_some(source, receive)
    for delivery in deliveries[:acknowledge]:
        await source.acknowledge(delivery)
    for by in adjust:
        await source.adjust_crash_count(deliveries[acknowledge], by)


def _run_child(consuming: Coroutine[Any, Any, None], writer: int) -> NoReturn:
    async def run() -> None:
        await consuming
        os.write(writer, _DONE)
        await asyncio.Event().wait()

    try:
        asyncio.run(run())
    except BaseException:  # noqa: BLE001 - whatever it is, this process never returns to the test
        os.write(writer, traceback.format_exc().encode())
    finally:
        os._exit(1)

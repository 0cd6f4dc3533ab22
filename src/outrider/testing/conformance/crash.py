"""A consumer that dies: a process that receives, acknowledges some messages and is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import warnings
from typing import TYPE_CHECKING, Final, NoReturn

from outrider.testing.conformance import timing
from outrider.testing.conformance.receiving import receive_some

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.ports import EventSource

_DONE: Final = b"done"


async def crash(source: Callable[[], EventSource], receive: int, acknowledge: int) -> None:
    """Fork a consumer, let it receive and acknowledge, and kill it.

    A fork needs no pickling of the test's objects.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Forking a process with threads is deprecated: a lock may be held. The deadline shows that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run_child(source, receive, acknowledge, writer)
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


def _run_child(
    source: Callable[[], EventSource], receive: int, acknowledge: int, writer: int
) -> NoReturn:
    try:
        asyncio.run(_consume(source, receive, acknowledge, writer))
    except BaseException:  # noqa: BLE001 - whatever it is, this process never returns to the test
        os.write(writer, traceback.format_exc().encode())
    finally:
        os._exit(1)


async def _consume(
    make: Callable[[], EventSource], receive: int, acknowledge: int, writer: int
) -> None:
    source = make()
    await source.open()
    deliveries = await receive_some(source, receive)
    for delivery in deliveries[:acknowledge]:
        await source.acknowledge(delivery)
    os.write(writer, _DONE)
    await asyncio.Event().wait()

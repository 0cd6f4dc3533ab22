"""Deadlines, delays and outages of the suites."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

max_wait_s = 60.0
"""Seconds after which a test stops waiting and fails; a healthy adapter needs far less."""
REFUSAL_CEILING_S: Final = 5.0
"""Within this time a call with a refused event must end; a healthy adapter needs milliseconds. It
is shorter than a usual publish timeout, which ends a call that waits for a held-back event."""
_TURNS: Final = 10
MOMENTS: Final = range(_TURNS + 8)


def deadline() -> asyncio.Timeout:
    return asyncio.timeout(max_wait_s)


def refusal_deadline() -> asyncio.Timeout:
    return asyncio.timeout(REFUSAL_CEILING_S)


async def moment(number: int) -> None:
    """A delay that grows with the number: first turns of the event loop, then milliseconds."""
    for _ in range(min(number, _TURNS)):
        await asyncio.sleep(0)
    if number > _TURNS:
        await asyncio.sleep((number - _TURNS) ** 2 / 1000)


async def before_the_next_try() -> None:
    await asyncio.sleep(0.1)


class Restartable(Protocol):
    """Any harness whose server can be stopped."""

    async def stop(self) -> None: ...
    async def start(self) -> None: ...


@asynccontextmanager
async def outage(server: Restartable) -> AsyncIterator[None]:
    """The server is down within the block, and is started again at its end in any case."""
    await server.stop()
    try:
        yield
    finally:
        await server.start()

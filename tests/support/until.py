"""Waits for a condition: `until` in coroutines, `wait_until` elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final

from outrider.testing.services.servers.server import wait_until
from tests.support.limits import MAX_WAIT_S, SEED

__all__ = ["until", "wait_until"]

_FIRST_DELAY_S: Final = 0.001
_MAX_DELAY_S: Final = 0.02


async def until(
    condition: Callable[[], Any], what: str = "the condition holds", within: float = MAX_WAIT_S
) -> None:
    """Check until the condition is true; it may be a coroutine function.

    After `within` seconds the test fails with a message that names what it waited for.
    """
    delay = _FIRST_DELAY_S
    try:
        async with asyncio.timeout(within):
            while True:
                holds = condition()
                if await holds if isawaitable(holds) else holds:
                    return
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY_S)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {what}; OUTRIDER_SEED={SEED}") from None

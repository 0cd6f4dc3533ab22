"""The demo by itself: flow, poison, an outage, a crash, the end of them, and a summary."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.demo.stage import Demo

_PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was left when nothing waited any more, or when patience had ended."""

    state: dict[str, Any]
    waited: int
    """How many events waited when the outage ended."""

    @property
    def is_fine(self) -> bool:
        """Whether everything that was recorded has taken effect, or is shown as failed."""
        counts = self.state["counts"]
        seen = counts["published"] + counts["failed"] == counts["recorded"]
        once = counts["published"] == self.state["handled"] > 0
        return bool(seen and once and self.state["relay"]["starts"] > 1)

    def __str__(self) -> str:
        counts, state = self.state["counts"], self.state
        return (
            f"  {counts['recorded']} events recorded, {counts['published']} published, "
            f"{counts['failed']} failed, {counts['pending']} pending; {state['handled']} handled "
            f"once, {state['duplicates']} duplicates skipped.\n"
            f"  An outage: {self.waited} events waited. A crash: the relay was started "
            f"{state['relay']['starts']} times. "
            f"{'All is well.' if self.is_fine else 'Something is wrong.'}"
        )


async def perform(demo: Demo, seconds: float) -> Summary:
    share = seconds / 5
    await asyncio.sleep(share)
    await demo.act("poison")
    await asyncio.sleep(share)
    await demo.act("break")
    await demo.users.send()
    await asyncio.sleep(share)
    waited = (await demo.state())["counts"]["pending"]
    await demo.act("repair")
    await asyncio.sleep(share)
    await demo.act("crash")
    await asyncio.sleep(share)
    await demo.rest()
    await demo.act("repair")  # what was refused for the last time while it was being repaired
    return Summary(state=await _settled(demo), waited=waited)


async def _settled(demo: Demo) -> dict[str, Any]:
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while not _is_settled(await demo.state()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    return await demo.state()


def _is_settled(state: dict[str, Any]) -> bool:
    counts = state["counts"]
    arrived = counts["pending"] == 0 and state["handled"] == counts["published"]
    return bool(arrived and state["relay"]["starts"] > 1 and state["duplicates"])

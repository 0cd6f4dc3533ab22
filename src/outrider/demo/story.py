"""The unattended demo: a poisoned event, an outage, a crash, the repair, and a summary."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.demo.stage import Demo
    from outrider.events.strict_json import JsonObject

_SETTLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The state after the last event was settled, or after a time limit."""

    state: JsonObject
    pending_in_outage: int

    @property
    def is_fine(self) -> bool:
        """Whether every recorded event has taken effect once, or is reported as failed."""
        counts = self.state["counts"]
        complete = counts["published"] + counts["failed"] == counts["recorded"]
        once = counts["published"] == self.state["handled"] > 0
        return bool(complete and once and self.state["relay"]["starts"] > 1)

    def __str__(self) -> str:
        counts, state = self.state["counts"], self.state
        return (
            f"  {counts['recorded']} events recorded, {counts['published']} published, "
            f"{counts['failed']} failed, {counts['pending']} pending; {state['handled']} handled "
            f"once, {state['duplicates']} duplicates skipped.\n"
            f"  An outage: {self.pending_in_outage} events waited. A crash: the relay was started "
            f"{state['relay']['starts']} times. "
            f"{'All is well.' if self.is_fine else 'Something is wrong.'}"
        )


async def perform(demo: Demo, seconds: float) -> Summary:
    phase = seconds / 5
    await asyncio.sleep(phase)
    await demo.run_action("poison")
    await asyncio.sleep(phase)
    await demo.run_action("break")
    await demo.users.send()
    await asyncio.sleep(phase)
    pending = (await demo.state())["counts"]["pending"]
    await demo.run_action("repair")
    await asyncio.sleep(phase)
    await demo.run_action("crash")
    await asyncio.sleep(phase)
    await demo.stop_traffic()
    await demo.run_action("repair")  # also events that failed during the first repair
    return Summary(state=await _settled(demo), pending_in_outage=pending)


async def _settled(demo: Demo) -> JsonObject:
    with suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            while not _is_settled(await demo.state()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    return await demo.state()


def _is_settled(state: JsonObject) -> bool:
    counts = state["counts"]
    all_handled = counts["pending"] == 0 and state["handled"] == counts["published"]
    return bool(all_handled and state["relay"]["starts"] > 1 and state["duplicates"])

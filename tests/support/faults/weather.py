"""Network faults of all kinds at random moments, and how soon events flow again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from outrider.testing.faulty_proxy import FaultyProxy
from tests.support.until import until

Fault = Callable[[FaultyProxy, random.Random], None]
Count = Callable[[], Awaitable[int]]

LONGEST = 4.0
FAULTS: Mapping[str, Fault] = {
    "black hole": lambda link, _: link.black_hole(),
    "half open": lambda link, chance: link.black_hole(toward=a_way(chance)),
    "clog": lambda link, chance: link.clog(toward=chance.choice([None, a_way(chance)])),
    "delay": lambda link, chance: link.delay(timedelta(seconds=chance.uniform(0.05, 0.5))),
    "trickle": lambda link, chance: link.trickle(chance.choice([1, 100, 5_000])),
    "cut": lambda link, chance: link.cut_after(chance.randrange(5_000), toward=a_way(chance)),
    "reset": lambda link, _: link.reset(),
    "refuse": lambda link, _: link.refuse(),
}


def a_way(chance: random.Random) -> Any:
    return chance.choice(["server", "client"])


class Weather:
    """Sets faults on one proxy at a time, sometimes on all, until the given number is reached."""

    def __init__(self, links: Mapping[str, FaultyProxy], seed: int) -> None:
        self.struck: Counter[str] = Counter()
        self.recoveries: list[float] = []
        """Seconds from the end of each fault to the next event that arrived."""
        self._links, self._chance = links, random.Random(seed)

    async def rage(self, faults: int, arrived: Count) -> None:
        """`arrived` counts the delivered events, and must grow after every fault."""
        deck = self._deck()
        for _ in range(faults):
            await asyncio.sleep(self._chance.uniform(0, 0.3))
            where, kind = next(deck)
            lasts = min(LONGEST, self._chance.expovariate(2))
            if self._chance.random() < 0.1:
                await self._clog_all(lasts)
            else:
                await self._strike(where, kind, lasts)
            await self._clears_up(f"{kind} on {where}", arrived)

    def _deck(self) -> Iterator[tuple[str, str]]:
        """Every fault on every proxy, in a new random order each time."""
        cards = [(where, kind) for where in self._links for kind in FAULTS]
        while True:
            self._chance.shuffle(cards)
            yield from cards

    async def _strike(self, where: str, kind: str, lasts: float) -> None:
        self.struck[kind] += 1
        FAULTS[kind](self._links[where], self._chance)
        await asyncio.sleep(lasts)
        self._links[where].heal()

    async def _clog_all(self, lasts: float) -> None:
        """Set the fault on all proxies one by one, and heal them in another order."""
        self.struck["all clogged"] += 1
        for link in self._in_some_order():
            link.clog()
            await asyncio.sleep(self._chance.uniform(0, 0.1))
        await asyncio.sleep(lasts)
        for link in self._in_some_order():
            link.heal()
            await asyncio.sleep(self._chance.uniform(0, 0.1))

    def _in_some_order(self) -> Sequence[FaultyProxy]:
        return self._chance.sample([*self._links.values()], len(self._links))

    async def _clears_up(self, what: str, arrived: Count) -> None:
        clock = asyncio.get_running_loop().time
        ended, before = clock(), await arrived()

        async def flows() -> bool:
            return await arrived() > before

        await until(flows, f"events flow again after {what}")
        self.recoveries.append(clock() - ended)

    def __str__(self) -> str:
        times = sorted(self.recoveries)
        typical = f"{times[len(times) // 2]:.2f} s, at most {times[-1]:.2f} s"
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.struck.items()))
        return f"{self.struck.total()} faults ({kinds}); flows again after {typical}"

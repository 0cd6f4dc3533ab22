"""The lanes that one relay holds, and until when it may count on them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

from outrider.signals import LanesChanged, LeaseWasLost

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from outrider.lanes import LaneLease
    from outrider.ports import LaneLeases
    from outrider.relay.config import RelayConfig
    from outrider.signals import OnSignal


class HeldLanes:
    """Lanes with their fencing tokens; renewed, taken over and released here and nowhere else."""

    def __init__(
        self, leases: LaneLeases, sink: str, config: RelayConfig, signal: OnSignal
    ) -> None:
        self.relay = uuid4()
        self._leases, self._sink, self._config, self._signal = leases, sink, config, signal
        self._tokens: dict[int, int] = {}
        self._recovering: set[int] = set()
        self._surplus: set[int] = set()
        self._releasing: set[int] = set()
        self._released: set[int] = set()
        self.valid_until = 0.0
        """Until when nobody else can have taken the lanes, on the event loop's clock."""

    @property
    def tokens(self) -> Mapping[int, int]:
        """The fencing token of each lane."""
        return self._tokens

    @property
    def recovering(self) -> Collection[int]:
        """Lanes whose last owner died, perhaps of an event that is pending there."""
        return self._recovering

    @property
    def surplus(self) -> Collection[int]:
        """Lanes to release as soon as nothing of theirs is in flight."""
        return self._surplus

    @property
    def are_valid(self) -> bool:
        return asyncio.get_running_loop().time() < self.valid_until

    async def renew(self) -> bool:
        """Extend the lease and take lanes up to the fair share; returns whether lanes changed."""
        started, self._released = asyncio.get_running_loop().time(), set(self._releasing)
        lease = await self._leases.lease(self.relay, self._config.name, self._config.lease)
        # A third of the lease is a safety margin for pauses of this process.
        self.valid_until = started + self._config.lease.total_seconds() * 2 / 3
        return self._apply(lease)

    def _apply(self, lease: LaneLease) -> bool:
        # Lanes released while the reply was on its way are not ours, whatever it says.
        held = {lane: token for lane, token in lease.lanes.items() if lane not in self._released}
        before, self._tokens = self._tokens, held
        self._surplus = set(lease.surplus) & held.keys()
        self._recovering = (self._recovering & held.keys()) | lease.orphaned
        if lost := [lane for lane, token in before.items() if held.get(lane) != token]:
            self._signal(LeaseWasLost(sink=self._sink, lanes=len(lost), events=0))
        if held == before:
            return bool(self._surplus)
        self._report(len(lease.orphaned))
        return True

    def recovered(self, lanes: Collection[int]) -> None:
        """Nothing in these lanes is under suspicion any more."""
        self._recovering.difference_update(lanes)

    async def release(self, lanes: set[int]) -> None:
        self._releasing |= lanes
        self._released |= lanes
        self._surplus -= lanes
        for lane in lanes:
            self._tokens.pop(lane, None)
        try:
            await self._leases.release(self.relay, lanes)
        finally:
            self._releasing -= lanes
        self._report(0)

    async def release_all(self) -> None:
        """Release every lane and sign off, at the end of the relay."""
        await self._leases.release(self.relay, None)

    def _report(self, orphaned: int) -> None:
        name, lanes = self._config.name, len(self._tokens)
        self._signal(LanesChanged(relay=name, sink=self._sink, lanes=lanes, orphaned=orphaned))

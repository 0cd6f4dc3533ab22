"""Random histories of relays that die and come back, and what a sink saw of them."""
# ruff: noqa: S101

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.outcomes import RefusedEvent
from outrider.testing.store_suite.harness import ALL, happened, until

if TYPE_CHECKING:
    import random
    from uuid import UUID

    from outrider.events.envelope import EventEnvelope
    from outrider.outcomes import ClaimedEvent
    from outrider.testing.store_suite.harness import Relay, StoreHarness


class History:
    """Relays that record, claim, settle, die and come back at random, and what a sink saw."""

    def __init__(self, harness: StoreHarness, relays: list[Relay], chance: random.Random) -> None:
        self._harness, self._relays, self._chance = harness, relays, chance
        self._batches: dict[Relay, list[ClaimedEvent]] = {relay: [] for relay in relays}
        self.recorded: dict[UUID, int] = {}
        self.delivered: dict[UUID, int] = {}
        self.out_of_order: list[UUID] = []

    async def begin(self) -> None:
        """Give lanes to all relays: some faults show only when two relays work at the same time."""
        for relay in self._relays * 2:
            await self._lease(relay)

    async def step(self) -> None:
        relay, what = self._chance.choice(self._relays), self._chance.random()
        if what < 0.1:
            await self._harness.expire()
        elif what < 0.2:
            await self._record()
        elif what < 0.4:
            await self._lease(relay)
        elif what < 0.7:
            await self._claim(relay)
        else:
            await self._settle(relay)

    async def drain(self) -> None:
        """Let one relay deliver the rest."""
        for relay in self._relays:
            await relay.store.release(relay.id, None)
        last = self._relays[0]
        await last.lease()

        async def nothing_left() -> bool:
            batch = await last.store.claim(ALL, 50)
            for event in batch:
                self._deliver(event.envelope)
            assert await last.settle(batch) == len(batch)
            return not batch

        await until(nothing_left)

    async def _record(self) -> None:
        events = happened(*(self._chance.randrange(5) for _ in range(4)))
        self.recorded |= {e.event_id: int(e.aggregate_id) for e in events}
        await self._harness.record(events)

    async def _lease(self, relay: Relay) -> None:
        """Release surplus lanes, unless a batch is in progress."""
        surplus = (await relay.lease()).surplus
        if surplus and not self._batches[relay]:
            await relay.store.release(relay.id, surplus)
            relay.tokens = {n: token for n, token in relay.tokens.items() if n not in surplus}

    async def _claim(self, relay: Relay) -> None:
        """Claim with the tokens the relay has, even if it has lost its lanes meanwhile."""
        if relay.tokens:
            self._batches[relay] = await relay.store.claim(relay.tokens, 10)

    async def _settle(self, relay: Relay) -> None:
        """Accept some events of each aggregate, then perhaps refuse one; the rest is unknown."""
        batch, self._batches[relay] = self._batches[relay], []
        accepted, refused, unknown = [], [], []
        stopped: set[str] = set()
        for event in batch:
            aggregate = event.envelope.aggregate_id
            if aggregate in stopped:
                unknown.append(event)
            elif self._chance.random() < 0.7:
                self._deliver(event.envelope)
                accepted.append(event)
            else:
                stopped.add(aggregate)
                refused.append(RefusedEvent(event, "no", timedelta(0)))
        await relay.settle(accepted, refused, unknown)

    def _deliver(self, envelope: EventEnvelope) -> None:
        """Note the first delivery of an event; later ones are duplicates."""
        if envelope.event_id not in self.delivered:
            number = list(self.recorded).index(envelope.event_id)
            aggregate = int(envelope.aggregate_id)
            seen = [n for e, n in self.delivered.items() if self.recorded[e] == aggregate]
            if seen and max(seen) > number:
                self.out_of_order.append(envelope.event_id)
            self.delivered[envelope.event_id] = number

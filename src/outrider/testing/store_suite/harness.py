"""What the store suite needs: a harness for each kind of store, and a relay double."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from outrider.events.envelope import EventEnvelope
from outrider.events.event import DomainEvent
from outrider.lanes import LANES
from outrider.ports import DEFAULT_SINK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from outrider.events.strict_json import JsonObject
    from outrider.lanes import LaneLease
    from outrider.outcomes import ClaimedEvent, RefusedEvent
    from outrider.ports import RelayStore

ALL: Final = range(LANES)
LEASE: Final = timedelta(seconds=30)
_MAX_WAIT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class StoredRow:
    """The current state of a row of the outbox."""

    event_id: UUID
    status: str
    retry_count: int = 0
    crash_count: int = 0
    last_error: str | None = None
    delivery_number: int | None = None
    attempts: Sequence[JsonObject] | None = None


class StoreHarness(ABC):
    """One empty outbox, for one test."""

    @abstractmethod
    def store(self, sink: str = DEFAULT_SINK, *, park: bool = False) -> RelayStore:
        """A new store of this outbox; the suite opens and closes it."""

    @abstractmethod
    async def record(
        self, events: Sequence[EventEnvelope], sinks: Sequence[str] = (DEFAULT_SINK,)
    ) -> None:
        """Record events for these sinks, in one transaction that commits and wakes relays up."""

    @abstractmethod
    async def rows(self, sink: str = DEFAULT_SINK) -> list[StoredRow]:
        """All rows of one sink, in the order of their recording."""

    @abstractmethod
    async def expire(self) -> None:
        """Let all leases run out."""

    @asynccontextmanager
    async def opened(
        self, sink: str = DEFAULT_SINK, *, park: bool = False
    ) -> AsyncIterator[RelayStore]:
        store = self.store(sink, park=park)
        await store.open(lambda _lanes: None)
        try:
            yield store
        finally:
            await store.close()


def happened(*aggregates: int) -> list[EventEnvelope]:
    """One event for each aggregate; the payload has its number."""
    return [
        DomainEvent("thing.happened", "thing", aggregate, {"n": n}).to_envelope()
        for n, aggregate in enumerate(aggregates)
    ]


def ids(events: Sequence[ClaimedEvent | EventEnvelope]) -> list[UUID]:
    envelopes = (e if isinstance(e, EventEnvelope) else e.envelope for e in events)
    return [envelope.event_id for envelope in envelopes]


class Relay:
    """Calls a store as a relay does, with its id and its fencing tokens."""

    def __init__(self, store: RelayStore) -> None:
        self.id, self.store = uuid4(), store
        self.tokens: dict[int, int] = {}

    async def lease(self) -> LaneLease:
        lease = await self.store.lease(self.id, "tester", LEASE)
        self.tokens = dict(lease.lanes)
        return lease

    async def settle(
        self,
        accepted: Sequence[ClaimedEvent] = (),
        refused: Sequence[RefusedEvent] = (),
        unknown: Sequence[ClaimedEvent] = (),
    ) -> int:
        return await self.store.settle(self.id, self.tokens, accepted, refused, unknown)

    async def adjust_crash_count(self, events: Sequence[ClaimedEvent], by: int = 1) -> None:
        await self.store.adjust_crash_count(self.id, self.tokens, events, by)


@asynccontextmanager
async def relay_of(
    harness: StoreHarness, sink: str = DEFAULT_SINK, *, park: bool = False
) -> AsyncIterator[Relay]:
    """A relay that has leased all lanes it can get."""
    async with harness.opened(sink, park=park) as store:
        relay = Relay(store)
        await relay.lease()
        yield relay


async def until(done: Callable[[], bool | Awaitable[bool]]) -> None:
    """Check until it is true. Sleeping lets the deadline fire with stores that never wait."""
    async with asyncio.timeout(_MAX_WAIT_S):
        while True:
            answer = done()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.002)

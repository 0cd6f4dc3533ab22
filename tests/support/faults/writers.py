"""Writers: transactions that each change one aggregate and record what they did."""

from __future__ import annotations

import asyncio
import random
from typing import Final
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outrider import DomainEvent, Outbox

AWAY: Final = (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
ROLLED_BACK, HELD_OPEN, HOT = 0.05, 0.1, 0.2

# The row is locked until the commit, so the writers of one aggregate wait for each other.
_CHANGE: Final = text(
    "UPDATE counters SET version = version + :by WHERE id = :id RETURNING version"
)

outbox = Outbox()


TOO_LARGE = "thing.large"
"""An event of this type has more than 300 bytes, all others have less."""


def changed(aggregate: str, number: int, event_type: str = "thing.changed") -> DomainEvent:
    note = "of interest" * (50 if event_type == TOO_LARGE else 1)
    return DomainEvent(event_type, "thing", aggregate, {"n": number, "note": note})


class Writers:
    """What was committed, what was rolled back, and what is unknown."""

    def __init__(self, engine: AsyncEngine, seed: int) -> None:
        self.aggregates: list[str] = []
        self.others = [f"b{number}" for number in range(100)]
        self.committed: set[UUID] = set()
        self.undone: set[UUID] = set()
        self.in_doubt: set[UUID] = set()
        self.failures = 0
        self._engine, self._seed = engine, seed
        self._left, self._stopping = 0, False
        self._task: asyncio.Task[None] | None = None

    def start(self, *, writers: int = 8, events: int = 10**9, pause: float = 0.0) -> None:
        """Write until `events` are committed, or until `stop`; `pause` is the mean delay."""
        self._left = events
        self._task = asyncio.create_task(self._run(writers, pause))

    def stop(self) -> None:
        self._stopping = True

    async def finished(self) -> None:
        assert self._task is not None
        await self._task

    async def stopped(self) -> None:
        self.stop()
        await self.finished()

    async def record(self, event_types: list[str], aggregate: str) -> list[UUID]:
        """One transaction with an event of each type."""
        return await self._record({aggregate: event_types})

    async def record_many(self, each: int) -> None:
        """Record this number of events for each of the other aggregates."""
        for start in range(0, len(self.others), 20):
            some = self.others[start : start + 20]
            await self._record({aggregate: ["thing.changed"] * each for aggregate in some})

    async def _record(self, wanted: dict[str, list[str]]) -> list[UUID]:
        events: list[DomainEvent] = []
        async with AsyncSession(self._engine) as session, session.begin():
            for aggregate, types in wanted.items():
                by = {"id": aggregate, "by": len(types)}
                before = await session.scalar(_CHANGE, by) - len(types)
                events += [changed(aggregate, n, t) for n, t in enumerate(types, before + 1)]
            outbox.record(session, *events)
        self.committed.update(event.event_id for event in events)
        return [event.event_id for event in events]

    async def _run(self, writers: int, pause: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(writers):
                tasks.create_task(self._write(random.Random(f"{self._seed}.{number}"), pause))

    async def _write(self, chance: random.Random, pause: float) -> None:
        while self._left > 0 and not self._stopping:
            self._left -= 1
            # All writers use a few aggregates often, so that they wait for each other's commits.
            some = self.aggregates[:10] if chance.random() < HOT else self.aggregates
            aggregate = chance.choice(some)
            committed = await self._change(aggregate, chance)
            while committed is None:  # the database is unavailable; try again
                await asyncio.sleep(0.05)
                committed = await self._change(aggregate, chance)
            if not committed:
                self._left += 1
            if pause:
                await asyncio.sleep(chance.uniform(0, 2 * pause))

    async def _change(self, aggregate: str, chance: random.Random) -> bool | None:
        """Whether it was committed; None if the database was unavailable."""
        event, committing = None, False
        try:
            async with AsyncSession(self._engine) as session:
                number = await session.scalar(_CHANGE, {"id": aggregate, "by": 1})
                event = changed(aggregate, number)
                outbox.record(session, event)
                if chance.random() < HELD_OPEN:
                    await asyncio.sleep(chance.uniform(0, 0.005))
                if chance.random() < ROLLED_BACK:
                    self.undone.add(event.event_id)
                    await session.rollback()
                    return False
                committing = True
                await session.commit()
        except AWAY:
            self.failures += 1
            if event is not None:
                (self.in_doubt if committing else self.undone).add(event.event_id)
            return None
        self.committed.add(event.event_id)
        return True

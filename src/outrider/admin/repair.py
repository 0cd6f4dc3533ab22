"""Repairing by hand: retry, discard, replay and delete, in small steps, each with a trace.

An action takes the same filter as a list. Who did it, when, to which and to how many is kept;
payloads are not.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, delete, func, insert, select, update

from outrider.errors import ConfigurationError
from outrider.store.schema.tables import DISCARDED, FAILED, PENDING, PUBLISHED, OutboxTables
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from outrider.admin.filters import EventFilter

    OnProgress = Callable[[int], None]

STEP: Final = 1_000
CHANGES: Final = {
    "retry": (FAILED,),
    "discard": (FAILED, PENDING),
    "delete": (PUBLISHED, DISCARDED),
}
"""Which states each action is about; events in others are left alone."""


class CountChanged(ConfigurationError):
    """There are more events, or fewer, than the person has agreed to; nothing was changed."""


class OutboxRepair:
    """What a person may do to events; `who` is kept with every action."""

    def __init__(
        self, engine: AsyncEngine, tables: OutboxTables | None = None, *, who: str = "unknown"
    ) -> None:
        self._engine = engine
        self._tables = tables or OutboxTables()
        self._outbox = self._tables.outbox
        self._who = who

    async def count(self, action: str, wanted: EventFilter) -> int:
        """How many events the action would change."""
        number = select(func.count()).select_from(self._outbox)
        async with self._engine.connect() as db:
            found = [await db.scalar(number.where(*one)) for one in self._where(wanted, action)]
            return sum(each or 0 for each in found)

    async def retry(self, wanted: EventFilter, expected: int | None = None) -> int:
        """Failed events become pending again, with all their attempts; relays are woken up."""
        fresh = {
            "status": PENDING,
            "retry_count": 0,
            "crash_count": 0,
            "next_retry_at": None,
        }
        changed = await self._change("retry", wanted, fresh, expected)
        self._wake()
        return changed

    async def discard(self, wanted: EventFilter, expected: int | None = None) -> int:
        """Failed or pending events are given up: kept for a while, and never sent."""
        given_up = {"status": DISCARDED, "next_retry_at": None, "published_at": func.now()}
        return await self._change("discard", wanted, given_up, expected)

    async def delete(self, wanted: EventFilter, expected: int | None = None) -> int:
        """Delete published and discarded events for good."""

        async def remove(db: AsyncConnection, some: list[int]) -> int:
            await db.execute(delete(self._outbox).where(self._outbox.c.position.in_(some)))
            return len(some)

        return await self._by_steps("delete", wanted, expected, remove)

    async def _change(
        self,
        action: str,
        wanted: EventFilter,
        values: dict[str, Any],
        expected: int | None,
    ) -> int:
        async def change(db: AsyncConnection, some: list[int]) -> int:
            c = self._outbox.c
            here = and_(c.position.in_(some), c.status.in_(CHANGES[action]))
            return (await db.execute(update(self._outbox).where(here).values(values))).rowcount

        return await self._by_steps(action, wanted, expected, change)

    async def _by_steps(
        self,
        action: str,
        wanted: EventFilter,
        expected: int | None,
        change: Callable[[AsyncConnection, list[int]], Awaitable[int]],
    ) -> int:
        """Each step is noted with what it changed, so that no change is without a trace."""
        await self._agreed(action, wanted, expected)
        changed, last, number = 0, False, await self._begin(action, wanted)
        while not last:
            async with self._engine.begin() as db:
                some = await self._some(db, wanted, action)
                changed, last = changed + await change(db, some), len(some) < STEP
                await self._note(db, number, changed, last=last)
        return changed

    async def _agreed(self, action: str, wanted: EventFilter, expected: int | None) -> None:
        if expected is not None and (found := await self.count(action, wanted)) != expected:
            raise CountChanged(f"{found} events match now, not {expected}; look again")

    def _where(self, wanted: EventFilter, action: str) -> list[list[ColumnElement[bool]]]:
        """State by state: each has an index of its own, and both together have none."""
        conditions = wanted.conditions(self._outbox)
        return [[*conditions, self._outbox.c.status == status] for status in CHANGES[action]]

    async def _some(self, db: AsyncConnection, wanted: EventFilter, action: str) -> list[int]:
        c, found = self._outbox.c, list[int]()
        for conditions in self._where(wanted, action):
            query = select(c.position).where(*conditions).limit(STEP - len(found))
            query = query.order_by(c.position).with_for_update(skip_locked=True)
            found += await db.scalars(query)
        return found

    async def _begin(self, action: str, wanted: EventFilter) -> int:
        texts = json.dumps(wanted.texts(), sort_keys=True)
        row = {"who": self._who, "action": action, "filter": texts}
        table = self._tables.actions
        async with self._engine.begin() as db:
            made = await db.execute(insert(table).values(row).returning(table.c.id))
            return int(made.scalar_one())

    async def _note(self, db: AsyncConnection, number: int, events: int, *, last: bool) -> None:
        done = {"finished_at": datetime.now(UTC)} if last else {}
        change = update(self._tables.actions).where(self._tables.actions.c.id == number)
        await db.execute(change.values(events=events, **done))

    def _wake(self) -> None:
        notifier_for(self._engine.sync_engine, self._tables.names.channel).notify()

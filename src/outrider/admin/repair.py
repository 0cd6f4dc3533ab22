"""Repairing: retry, discard and delete events in small steps, with an audit log.

An action takes the same filter as a list. The audit log keeps who did it, when, the filter and the
number of events, but no payloads.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, delete, func, insert, select, update

from outrider.errors import ConfigurationError
from outrider.store.schema.tables import DISCARDED, FAILED, PENDING, PUBLISHED, OutboxTables
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from outrider.admin.filters import EventFilter

STEP_EVENTS: Final = 1_000
STATUSES_OF_ACTION: Final = {
    "retry": (FAILED,),
    "discard": (FAILED, PENDING),
    "delete": (PUBLISHED, DISCARDED),
    "replay": (PUBLISHED,),
}
"""The statuses that each action changes; events with another status stay unchanged."""
_MAX_EXPLAINED: Final = 5_000


def statuses_of(action: str, wanted: EventFilter) -> tuple[str, ...]:
    """A retry brings discarded events back if they are named: by id, or by their status."""
    named = wanted.event_id is not None or wanted.status == DISCARDED
    return STATUSES_OF_ACTION[action] + (DISCARDED,) * (action == "retry" and named)


class CountChanged(ConfigurationError):
    """The number of matching events is not the one that was confirmed; nothing was changed."""


class OutboxRepair:
    """The actions of a person on events; the audit log keeps `who` with each of them."""

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
            queries = [number.where(*conditions) for conditions in self._where(wanted, action)]
            return sum([await db.scalar(query) or 0 for query in queries])

    async def why_none(self, action: str, wanted: EventFilter) -> str:
        """One sentence for an action that changes no event: which statuses the events have."""
        status = self._outbox.c.status
        some = select(status).where(*wanted.conditions(self._outbox)).limit(_MAX_EXPLAINED)
        async with self._engine.connect() as db:
            found = Counter(await db.scalars(some))
        takes = f"{action} takes {' and '.join(statuses_of(action, wanted))} events"
        if wanted.event_id is not None:
            has = ", ".join(sorted(found))
            return f"{takes}; {wanted.event_id} {f'is {has}' if has else 'is no event here'}"
        counts = ", ".join(f"{number:,} {status}" for status, number in found.most_common())
        cure = f"; select status {DISCARDED} to bring these back" * (
            action == "retry" and DISCARDED in found
        )
        return f"{takes}; {f'the filter finds {counts}' if counts else 'no event matches'}{cure}"

    async def retry(self, wanted: EventFilter, expected: int | None = None) -> int:
        """Make failed events pending again, with all their attempts, and wake up relays.

        Also discarded events, if `wanted` names them by id or by their status.
        """
        values = {
            "status": PENDING,
            "retry_count": 0,
            "crash_count": 0,
            "next_retry_at": None,
            "published_at": None,
        }
        changed = await self._change("retry", wanted, values, expected)
        self._wake()
        return changed

    async def discard(self, wanted: EventFilter, expected: int | None = None) -> int:
        """Give up failed or pending events. Their rows stay until `delete`; `retry` can undo it."""
        values = {"status": DISCARDED, "next_retry_at": None, "published_at": func.now()}
        return await self._change("discard", wanted, values, expected)

    async def delete(self, wanted: EventFilter, expected: int | None = None) -> int:
        """Delete published and discarded events."""

        async def remove(db: AsyncConnection, positions: list[int]) -> int:
            await db.execute(delete(self._outbox).where(self._outbox.c.position.in_(positions)))
            return len(positions)

        return await self._by_steps("delete", wanted, expected, remove)

    async def _change(
        self,
        action: str,
        wanted: EventFilter,
        values: Mapping[str, object],
        expected: int | None,
    ) -> int:
        async def change(db: AsyncConnection, positions: list[int]) -> int:
            c = self._outbox.c
            rows = and_(c.position.in_(positions), c.status.in_(statuses_of(action, wanted)))
            return (await db.execute(update(self._outbox).where(rows).values(**values))).rowcount

        return await self._by_steps(action, wanted, expected, change)

    async def _by_steps(
        self,
        action: str,
        wanted: EventFilter,
        expected: int | None,
        change: Callable[[AsyncConnection, list[int]], Awaitable[int]],
    ) -> int:
        """Each step updates the audit log in the same transaction."""
        await self._check_count(action, wanted, expected)
        changed, last, number = 0, False, await self._begin_audit(action, wanted)
        while not last:
            async with self._engine.begin() as db:
                positions = await self._lock_step(db, wanted, action)
                last = len(positions) < STEP_EVENTS
                changed += await change(db, positions)
                await self._update_audit(db, number, changed, last=last)
        return changed

    async def _check_count(self, action: str, wanted: EventFilter, expected: int | None) -> None:
        if expected is not None and (matching := await self.count(action, wanted)) != expected:
            raise CountChanged(f"{matching} events match now, not {expected}; look again")

    def _where(self, wanted: EventFilter, action: str) -> list[list[ColumnElement[bool]]]:
        """One query per status: each status has an index, but two statuses together have none."""
        conditions = wanted.conditions(self._outbox)
        return [
            [*conditions, self._outbox.c.status == status] for status in statuses_of(action, wanted)
        ]

    async def _lock_step(self, db: AsyncConnection, wanted: EventFilter, action: str) -> list[int]:
        """Lock the next matching rows that no other transaction has locked."""
        c, positions = self._outbox.c, list[int]()
        for conditions in self._where(wanted, action):
            query = select(c.position).where(*conditions).limit(STEP_EVENTS - len(positions))
            query = query.order_by(c.position).with_for_update(skip_locked=True)
            positions += await db.scalars(query)
        return positions

    async def _begin_audit(self, action: str, wanted: EventFilter) -> int:
        texts = json.dumps(wanted.texts(), sort_keys=True)
        row = {"who": self._who, "action": action, "filter": texts}
        table = self._tables.actions
        async with self._engine.begin() as db:
            inserted = await db.execute(insert(table).values(row).returning(table.c.id))
            return int(inserted.scalar_one())

    async def _update_audit(
        self, db: AsyncConnection, number: int, events: int, *, last: bool
    ) -> None:
        finished = {"finished_at": datetime.now(UTC)} if last else {}
        change = update(self._tables.actions).where(self._tables.actions.c.id == number)
        await db.execute(change.values(events=events, **finished))

    def _wake(self) -> None:
        notifier_for(self._engine.sync_engine, self._tables.names.channel).notify()

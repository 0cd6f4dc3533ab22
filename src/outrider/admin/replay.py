"""Replaying: published events are sent once more; an interrupted replay can be resumed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from outrider.admin.filters import EventFilter
from outrider.admin.repair import STEP
from outrider.errors import ConfigurationError
from outrider.lanes import LANES, aggregate_key
from outrider.store.schema.tables import PENDING, PUBLISHED, OutboxTables
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Row
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    OnProgress = Callable[[int], None]


class Replay:
    """Published events once more, to their sink or to another one; interrupted, it goes on.

    Events are made pending again in the order of their positions, marked with the replay's
    number, and relays bring them as they bring any other: in order, at least once. How far it
    came is noted in the same transaction, so that a second run with the number goes on there.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tables: OutboxTables | None = None,
        *,
        who: str = "unknown",
        rate: float | None = None,
    ) -> None:
        """`rate` is the most events a second, None as fast as the database can.

        A tenth of them goes at a time, so that relays get an even flow.
        """
        self._engine = engine
        self._tables = tables or OutboxTables()
        self._outbox, self._actions = self._tables.outbox, self._tables.actions
        self._who = who
        self._step = STEP if rate is None else max(1, min(STEP, int(rate / 10)))
        self._pause = 0.0 if rate is None else self._step / rate

    async def count(self, wanted: EventFilter, *, to: str | None = None) -> int:
        """How many events there are to be replayed now."""
        number = select(func.count()).select_from(self._outbox)
        async with self._engine.connect() as db:
            return await db.scalar(number.where(*self._where(wanted, to))) or 0

    async def begin(self, wanted: EventFilter, *, to: str | None = None) -> int:
        """Note what is to be replayed, up to the newest event of now; its number."""
        c = self._outbox.c
        async with self._engine.begin() as db:
            newest = await db.scalar(select(func.max(c.position))) or 0
            upto = newest if wanted.last is None else min(newest, wanted.last)
            texts = {**replace(wanted, last=upto).texts(), **({"to": to} if to else {})}
            row = {"who": self._who, "action": "replay", "filter": json.dumps(texts), "reached": 0}
            made = await db.execute(insert(self._actions).values(row).returning(self._actions.c.id))
            return int(made.scalar_one())

    async def run(self, number: int, on_progress: OnProgress = lambda _: None) -> int:
        """Go on until all is done; how many events it has been in all runs together."""
        while True:
            async with self._engine.begin() as db:
                row = await self._note_of(db, number)
                if row.finished_at is None:
                    moved, reached = await self._move(db, row)
                    await self._progress(db, number, row.events + moved, reached)
            on_progress(row.events if row.finished_at else row.events + moved)
            if row.finished_at is not None:
                return int(row.events)
            notifier_for(self._engine.sync_engine, self._tables.names.channel).notify()
            await asyncio.sleep(self._pause)

    async def _note_of(self, db: AsyncConnection, number: int) -> Row[Any]:
        """Writing to it first keeps other runs of this replay waiting, in SQLite as well."""
        c = self._actions.c
        note = update(self._actions).where(c.id == number, c.action == "replay")
        locked = note.values(events=c.events).returning(*c)
        row = (await db.execute(locked)).one_or_none()
        if row is None:
            raise ConfigurationError(f"there is no replay {number}; see `outrider replay --list`")
        return row

    async def _move(self, db: AsyncConnection, row: Row[Any]) -> tuple[int, int | None]:
        """The next few; how many they were, and the last position, None when none is left."""
        texts = json.loads(row.filter)
        to, wanted = texts.pop("to", None), EventFilter.parse(texts)
        c = self._outbox.c
        query = select(c.position).where(*self._where(wanted, to), c.position > row.reached)
        query = query.order_by(c.position).limit(self._step)
        positions = list(await db.scalars(query))
        if not positions:
            return 0, None
        if to:
            await self._copy(db, positions, to, row.id)
        else:
            await self._again(db, positions, row.id)
        return len(positions), positions[-1]

    def _where(self, wanted: EventFilter, to: str | None) -> list[ColumnElement[bool]]:
        """Taken from its own sink, an event must be published; for another, it is copied."""
        states = [] if to else [self._outbox.c.status == PUBLISHED]
        return [*wanted.conditions(self._outbox), *states]

    async def _progress(
        self, db: AsyncConnection, number: int, events: int, reached: int | None
    ) -> None:
        done = {"finished_at": datetime.now(UTC)} if reached is None else {"reached": reached}
        change = update(self._actions).where(self._actions.c.id == number)
        await db.execute(change.values(events=events, **done))

    async def _again(self, db: AsyncConnection, positions: list[int], number: int) -> None:
        c = self._outbox.c
        pending = {
            "status": PENDING,
            "retry_count": 0,
            "published_at": None,
            "delivery_number": None,
            "metadata": self._marked(db, number),
        }
        await db.execute(update(self._outbox).where(c.position.in_(positions)).values(pending))

    async def _copy(self, db: AsyncConnection, positions: list[int], to: str, number: int) -> None:
        """Rows of their own for another sink; one that has the event already keeps it."""
        c = self._outbox.c
        rows = await db.execute(
            select(c.position, c.aggregate_type, c.aggregate_id).where(c.position.in_(positions))
        )
        same = (
            *("id", "event_type", "event_version", "aggregate_type", "aggregate_id"),
            *("payload", "occurred_at"),
        )
        dialect = postgresql if db.dialect.name == "postgresql" else sqlite
        for row in sorted(rows.all()):
            key = aggregate_key(to, row.aggregate_type, row.aggregate_id)
            values: dict[str, ColumnElement[Any]] = {
                "sink": literal(to),
                "lane": literal(key % LANES),
                "aggregate_key": literal(key),
                "metadata": self._marked(db, number),
                **{name: c[name] for name in same},
            }
            source = select(*values.values()).where(c.position == row.position)
            copy = dialect.insert(self._outbox).from_select(list(values), source)
            await db.execute(copy.on_conflict_do_nothing())

    def _marked(self, db: AsyncConnection, number: int) -> ColumnElement[Any]:
        c, mark = self._outbox.c, str(number)
        if db.dialect.name == "postgresql":
            return c["metadata"].op("||")(func.jsonb_build_object("replay_id", mark))
        return func.json_set(c["metadata"], "$.replay_id", mark)

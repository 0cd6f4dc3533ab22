"""Replay: publishes published events again; an interrupted replay can be resumed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from outrider.admin.filters import EventFilter
from outrider.admin.repair import STEP_EVENTS
from outrider.errors import ConfigurationError
from outrider.lanes import LANES, aggregate_key
from outrider.store.schema.tables import PENDING, PUBLISHED, OutboxTables
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Row
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    OnProgress = Callable[[int], None]
    _Column = ColumnElement[Any]


class Replay:
    """Publishes published events again, to their sink or to another sink.

    Makes events pending again in the order of their positions, and marks them with the number of
    the replay. Relays publish them like all others: in order, at least once. The position reached
    is saved in the same transaction, so a later run with the same number continues there.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tables: OutboxTables | None = None,
        *,
        who: str = "unknown",
        rate: float | None = None,
    ) -> None:
        """`rate` is the maximum of events per second; None means as fast as the database can.

        A step has a tenth of `rate`, so that relays get an even flow.
        """
        if rate is not None and not 0 < rate < inf:
            raise ConfigurationError("rate must be a number of events per second, above 0")
        self._engine = engine
        self._tables = tables or OutboxTables()
        self._outbox, self._actions = self._tables.outbox, self._tables.actions
        self._who = who
        self._step = STEP_EVENTS if rate is None else max(1, min(STEP_EVENTS, int(rate / 10)))
        self._step_interval_s = 0.0 if rate is None else self._step / rate

    async def count(self, wanted: EventFilter, *, to: str | None = None) -> int:
        """How many events a replay would publish now."""
        number = select(func.count()).select_from(self._outbox)
        async with self._engine.connect() as db:
            return await db.scalar(number.where(*self._where(wanted, to))) or 0

    async def begin(self, wanted: EventFilter, *, to: str | None = None) -> int:
        """Save a new replay of all matching events up to the newest one; returns its number."""
        c = self._outbox.c
        async with self._engine.begin() as db:
            newest = await db.scalar(select(func.max(c.position))) or 0
            last = newest if wanted.last is None else min(newest, wanted.last)
            texts = {**replace(wanted, last=last).texts(), **({"to": to} if to else {})}
            row = {"who": self._who, "action": "replay", "filter": json.dumps(texts), "reached": 0}
            insert_row = insert(self._actions).values(row).returning(self._actions.c.id)
            return int((await db.execute(insert_row)).scalar_one())

    async def run(self, number: int, on_progress: OnProgress = lambda _: None) -> int:
        """Run or resume a replay to its end; returns the number of events of all its runs."""
        while True:
            async with self._engine.begin() as db:
                row = await self._lock_replay(db, number)
                if row.finished_at is None:
                    moved, reached = await self._move(db, row)
                    await self._save_progress(db, number, row.events + moved, reached)
            on_progress(row.events if row.finished_at else row.events + moved)
            if row.finished_at is not None:
                return int(row.events)
            notifier_for(self._engine.sync_engine, self._tables.names.channel).notify()
            await asyncio.sleep(self._step_interval_s)

    async def _lock_replay(self, db: AsyncConnection, number: int) -> Row[Any]:
        """An UPDATE locks the row on PostgreSQL and SQLite, so other runs of it wait."""
        c = self._actions.c
        replay = update(self._actions).where(c.id == number, c.action == "replay")
        locked = replay.values(events=c.events).returning(*c)
        row = (await db.execute(locked)).one_or_none()
        if row is None:
            raise ConfigurationError(f"there is no replay {number}; see `outrider replay --list`")
        return row

    async def _move(self, db: AsyncConnection, row: Row[Any]) -> tuple[int, int | None]:
        """Replay the next step; returns its size and its last position, None if none was left."""
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
            await self._make_pending(db, positions, row.id)
        return len(positions), positions[-1]

    def _where(self, wanted: EventFilter, to: str | None) -> list[ColumnElement[bool]]:
        """Only published events, unless the events are copied to another sink."""
        published = [] if to else [self._outbox.c.status == PUBLISHED]
        return [*wanted.conditions(self._outbox), *published]

    async def _save_progress(
        self, db: AsyncConnection, number: int, events: int, reached: int | None
    ) -> None:
        progress = {"finished_at": datetime.now(UTC)} if reached is None else {"reached": reached}
        change = update(self._actions).where(self._actions.c.id == number)
        await db.execute(change.values(events=events, **progress))

    async def _make_pending(self, db: AsyncConnection, positions: list[int], number: int) -> None:
        c = self._outbox.c
        pending = {
            "status": PENDING,
            "retry_count": 0,
            "crash_count": 0,
            "published_at": None,
            "delivery_number": None,
            "metadata": self._marked(db, number),
        }
        await db.execute(update(self._outbox).where(c.position.in_(positions)).values(pending))

    async def _copy(self, db: AsyncConnection, positions: list[int], to: str, number: int) -> None:
        """Insert copies for another sink; a sink that has the event already keeps its row."""
        c = self._outbox.c
        rows = await db.execute(
            select(c.position, c.aggregate_type, c.aggregate_id).where(c.position.in_(positions))
        )
        copied = (
            *("id", "event_type", "event_version", "aggregate_type", "aggregate_id"),
            *("payload", "occurred_at"),
        )
        dialect = postgresql if db.dialect.name == "postgresql" else sqlite
        for row in sorted(rows.all()):
            key = aggregate_key(to, row.aggregate_type, row.aggregate_id)
            values: dict[str, _Column] = {
                "sink": literal(to),
                "lane": literal(key % LANES),
                "aggregate_key": literal(key),
                "metadata": self._marked(db, number),
                **{name: c[name] for name in copied},
            }
            source = select(*values.values()).where(c.position == row.position)
            copy = dialect.insert(self._outbox).from_select(list(values), source)
            await db.execute(copy.on_conflict_do_nothing())

    def _marked(self, db: AsyncConnection, number: int) -> _Column:
        """The metadata with the number of this replay."""
        c, replay_id = self._outbox.c, str(number)
        if db.dialect.name == "postgresql":
            return c["metadata"].op("||")(func.jsonb_build_object("replay_id", replay_id))
        return func.json_set(c["metadata"], "$.replay_id", replay_id)

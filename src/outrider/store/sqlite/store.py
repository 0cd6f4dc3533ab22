"""The outbox store on SQLite, for one process or a few processes on one machine."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outrider.lanes import LANES, LANES_FREE, LaneLease, fair_share, surplus
from outrider.ports import DEFAULT_SINK
from outrider.store.claimed_events import event_of
from outrider.store.schema.migrate import refuse_version
from outrider.store.schema.tables import OutboxTables
from outrider.store.sqlite.connection import SqliteConnection, moment
from outrider.store.sqlite.statements import Statements
from outrider.store.wakeup import notifier_for

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.outcomes import ClaimedEvent, RefusedEvent


class SqliteOutboxStore:
    """Implements RelayStore, with its own connection and thread.

    Relays of the same process are woken up at once; relays of other processes poll.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tables: OutboxTables | None = None,
        *,
        sink: str = DEFAULT_SINK,
        park: bool = False,
        timeout: timedelta = timedelta(seconds=10),
        announce: bool = False,
    ) -> None:
        self.sink = sink
        self._names = names = (tables or OutboxTables()).names
        self._sql = Statements(names, park=park)
        self._connection = SqliteConnection(engine, timeout, names)
        self._notifier = notifier_for(engine.sync_engine, names.channel)
        self._readers = (
            notifier_for(engine.sync_engine, names.delivered_channel) if announce else None
        )
        self._stop_listening: Callable[[], None] = lambda: None

    async def open(self, wake: Callable[[str], None], /) -> str:
        def prepare(db: sqlite3.Connection) -> None:
            refuse_version(db.execute(self._sql.version).fetchone()[0], self._names)
            db.execute(self._sql.prepare_sink, {"sink": self.sink})
            lanes = [{"sink": self.sink, "lane": lane} for lane in range(LANES)]
            db.executemany(self._sql.prepare, lanes)

        await self._connection.write(prepare)
        loop = asyncio.get_running_loop()
        self._stop_listening = self._notifier.subscribe(
            lambda payload: loop.call_soon_threadsafe(wake, payload)
        )
        return f"sqlite:///{self._connection.file}"

    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        parameters = {
            "sink": self.sink,
            "relay": relay.hex,
            "name": name,
            "wait": _after(duration),
        }

        def renew(db: sqlite3.Connection) -> LaneLease:
            db.execute(self._sql.heartbeat, parameters)
            db.execute(self._sql.renew, parameters)
            db.execute(self._sql.delete_dead_relays, parameters)
            live = [UUID(row[0]) for row in db.execute(self._sql.live_relays, parameters)]
            share, lanes = (
                fair_share(relay, live),
                dict(db.execute(self._sql.own_lanes, parameters)),
            )
            wanted = max(0, share - len(lanes))
            free = db.execute(self._sql.free_lanes, {**parameters, "count": wanted}).fetchall()
            db.executemany(self._sql.take, [{**parameters, "lane": lane} for lane, _ in free])
            lanes = dict(db.execute(self._sql.own_lanes, parameters))
            orphaned = frozenset(lane for lane, orphaned in free if orphaned)
            return LaneLease(lanes, orphaned, frozenset(surplus(lanes, share)))

        return await self._connection.write(renew)

    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        parameters = {"sink": self.sink, "relay": relay.hex}
        given = None if lanes is None else json.dumps(list(lanes))

        def release(db: sqlite3.Connection) -> None:
            db.execute(self._sql.release, {**parameters, "lanes": given})
            if lanes is None:
                db.execute(self._sql.sign_off, parameters)

        await self._connection.write(release)
        self._notifier.notify(LANES_FREE)

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        parameters = {
            "sink": self.sink,
            "lanes": json.dumps(list(lanes)),
            "limit": limit,
            "now": now,
        }
        rows = await self._connection.write(
            lambda db: db.execute(self._sql.claim, parameters).fetchall()
        )
        return [event_of(_typed(row)) for row in rows]

    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        unknown: Sequence[ClaimedEvent],  # noqa: ARG002 - their rows stay unchanged
        /,
    ) -> int:
        def where(event: ClaimedEvent) -> dict[str, object]:
            return self._fence(relay, tokens, event)

        def write(db: sqlite3.Connection) -> int:
            counted = {"sink": self.sink, "count": len(accepted)}
            (last,) = db.execute(self._sql.next_delivery_numbers, counted).fetchone()
            first = last - len(accepted) + 1
            to_accept = [{**where(e), "delivery_number": n} for n, e in enumerate(accepted, first)]
            to_refuse = [
                {
                    **where(r.event),
                    "reason": r.reason,
                    "wait": _after(r.wait),
                    "counted": r.counted,
                }
                for r in refused
            ]
            changed = db.executemany(self._sql.accept, to_accept).rowcount if accepted else 0
            return changed + (
                db.executemany(self._sql.refuse, to_refuse).rowcount if refused else 0
            )

        changed = await self._connection.write(write) if accepted or refused else 0
        if self._readers and accepted:
            self._readers.notify()
        return changed

    async def adjust_crash_count(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        fenced = [{**self._fence(relay, tokens, event), "by": by} for event in events]
        await self._connection.write(
            lambda db: db.executemany(self._sql.adjust_crash_count, fenced).rowcount
        )

    async def count_pending(self, most: int, /) -> int:
        parameters = {"sink": self.sink, "most": most}
        (count,) = await self._connection.write(
            lambda db: db.execute(self._sql.count_pending, parameters).fetchone()
        )
        return int(count)

    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        parameters = {"sink": self.sink, "limit": limit, "wait": _before(older_than)}
        return await self._connection.write(
            lambda db: db.execute(self._sql.delete_published, parameters).rowcount
        )

    async def close(self) -> None:
        self._stop_listening()
        await self._connection.close()

    def _fence(
        self, relay: UUID, tokens: Mapping[int, int], event: ClaimedEvent
    ) -> dict[str, object]:
        """Parameters that make a statement change the row only while the lease is valid."""
        return {
            "sink": self.sink,
            "relay": relay.hex,
            "lane": event.lane,
            "token": tokens.get(event.lane),
            "position": event.position,
        }


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0], UUID(row[1]), *row[2:7], moment(row[7]), moment(row[8]), *row[9:])


def _after(wait: timedelta | None) -> str | None:
    return None if wait is None else f"+{wait.total_seconds()} seconds"


def _before(age: timedelta) -> str:
    return f"-{age.total_seconds()} seconds"

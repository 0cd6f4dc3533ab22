"""All interleavings of a few sessions on PostgreSQL, in the manner of its isolation tester.

A session does one thing in a transaction of its own: a statement, then the commit. Every order of
these steps is played; a step that waits for a lock is left waiting while the others go on. One
event is in the hands of a relay whose lease has run out, and an heir wants its lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.lanes import aggregate_key
from outrider.recording.rows import Row, row_of
from outrider.store.postgres.statements import Statements
from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.store_world import FIRST, event_of

SINK, LEASE, TOKEN = "default", timedelta(hours=1), 7
KEY: Final = aggregate_key(SINK, "thing", str(FIRST))
LANE: Final = KEY % 64
OLD, HEIR = uuid4(), uuid4()
FENCE: Final = (SINK, OLD, [LANE], [TOKEN], [1], [LANE])
sql = Statements(OutboxTables().names)
RECORD = f"INSERT INTO outbox ({', '.join(Row._fields)}) VALUES ({{}})".format(  # noqa: S608
    ", ".join(f"${n}" for n in range(1, len(Row._fields) + 1))
)


UNTOUCHED: Final = ("pending", 0, 0)
WAITS: Final = "SELECT cardinality(pg_blocking_pids($1)) > 0"
AFRESH: Final = """
DELETE FROM outbox; DELETE FROM outbox_relays;
SELECT setval(pg_get_serial_sequence('outbox', 'position'), 1, false);
UPDATE outbox_lanes SET expires_at = '2020-01-01'
"""


def new_row() -> tuple[Any, ...]:
    return tuple(row_of(event_of(FIRST).to_envelope()))


SESSIONS: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "accept": (sql.accept, FENCE),
    "refuse": (sql.refuse, (*FENCE, [None], ["no"], [True])),
    "adjust_crash_count": (sql.adjust_crash_count, (*FENCE, 1)),
    "renew": (sql.renew, (SINK, OLD, "old", LEASE)),
    "release": (sql.release, (SINK, OLD, [LANE])),
    "take": (sql.take, (SINK, HEIR, LEASE, 1)),
    "produce": (RECORD, ()),
}
SPECS: Final = [
    ("accept", "take", "renew"),
    ("accept", "take", "produce"),
    ("refuse", "take", "release"),
    ("adjust_crash_count", "take", "release"),
]


def interleavings(left: dict[str, int]) -> Iterator[list[str]]:
    if not any(left.values()):
        yield []
    for name in (name for name, steps in left.items() if steps):
        for rest in interleavings({**left, name: left[name] - 1}):
            yield [name, *rest]


class Session:
    """A connection, its transaction, and its steps, one after the other."""

    def __init__(self, name: str, link: asyncpg.Connection[Any], log: list[str]) -> None:
        self._name, self._link, self._log = name, link, log
        self._transaction: Any = None
        self._task: asyncio.Task[None] | None = None

    def go_on(self) -> None:
        self._task = asyncio.create_task(self._step(self._task))

    async def _step(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        if self._transaction is None:
            self._transaction = self._link.transaction()
            await self._transaction.start()
            statement, values = SESSIONS[self._name]
            await self._link.execute(statement, *(values or new_row()))
            self._log.append(self._name)
        else:
            await self._transaction.commit()
            self._log.append(f"{self._name} commits")

    async def done(self) -> None:
        if self._task is not None:
            await self._task

    async def rests(self, look: asyncpg.Connection[Any]) -> bool:
        """Whether it has nothing to do, or waits for a lock."""
        if self._task is None or self._task.done():
            return self._task is None or self._task.result() is None
        return bool(await look.fetchval(WAITS, self._link.get_server_pid()))


class Ended:
    """What the tables say when all sessions are through, and in which order things were done."""

    def __init__(self, log: list[str], event: Any, lane: Any, claimed: list[int]) -> None:
        self.log, self.claimed = log, claimed
        self.settled = (event["status"], event["retry_count"], event["crash_count"]) != UNTOUCHED
        self.pending = event["status"] == "pending"
        self.owner, self.token = lane["owner"], lane["token"]

    def before(self, one: str, other: str) -> bool:
        return {one, other} <= set(self.log) and self.log.index(one) < self.log.index(other)


async def play(order: list[str], links: list[asyncpg.Connection[Any]]) -> Ended:
    look, *others = links
    await look.execute(AFRESH)
    await look.execute("UPDATE outbox_lanes SET owner = $1, token = $2", OLD, TOKEN)
    await look.execute(RECORD, *new_row())
    log: list[str] = []
    sessions = {
        name: Session(name, link, log)
        for name, link in zip(sorted(set(order)), others, strict=True)
    }
    for name in order:
        sessions[name].go_on()
        while not all([await each.rests(look) for each in sessions.values()]):
            pass
    async with asyncio.timeout(30):  # one whose lock was just released may be at work still
        await asyncio.gather(*(each.done() for each in sessions.values()))
    assert len(log) == len(order), "all steps are done in the end"
    event = await look.fetchrow("SELECT * FROM outbox WHERE position = 1")
    lane = await look.fetchrow("SELECT * FROM outbox_lanes")
    claimed = await look.fetch(sql.claim, SINK, [LANE], [0], 10, 10)
    return Ended(log, event, lane, [row["position"] for row in claimed])


@pytest.fixture
async def links(services: Services) -> AsyncIterator[list[asyncpg.Connection[Any]]]:
    url = create_database(services)
    engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg", 1))
    async with engine.begin() as connection:
        await connection.run_sync(OutboxTables().metadata.create_all)
    await engine.dispose()
    made = [await asyncpg.connect(url) for _ in range(4)]
    for statement in sql.prepare:
        await made[0].execute(statement, SINK)
    await made[0].execute("DELETE FROM outbox_lanes WHERE lane <> $1", LANE)
    yield made
    for link in made:
        await link.close()


@pytest.mark.parametrize("spec", SPECS, ids="-".join)
async def test_only_the_holder_of_a_lane_changes_its_rows_in_every_interleaving(
    spec: tuple[str, ...], links: list[asyncpg.Connection[Any]]
) -> None:
    settles = spec[0]
    orders = list(interleavings(dict.fromkeys(spec, 2)))
    taken, refused = 0, 0
    for order in orders:
        end = await play(order, links)

        took = end.token == TOKEN + 1
        lost = [f"{each} commits" for each in ("take", "release") if end.before(each, settles)]
        assert end.token == TOKEN + took, "one take-over, one new token"
        assert (end.owner == HEIR) == took, f"what the heir has taken stays its own: {end.log}"
        if end.settled and took:
            assert end.before(f"{settles} commits", "take"), f"a stale relay settled: {end.log}"
        if not end.settled:
            assert lost, f"the holder was turned away: {end.log}"
        recorded = [2] if "produce" in spec else []
        assert end.claimed == [1] * end.pending + recorded, "what is pending is found, in order"
        taken, refused = taken + took, refused + (not end.settled)
    assert len(orders) == 90
    assert 0 < taken < 90
    assert 0 < refused < 90

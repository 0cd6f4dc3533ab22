"""One outbox with writers and relays, and a record of everything they did."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.store.schema.migrate import create_all
from tests.support.faults.log_readers import reader_of
from tests.support.faults.scoreboard import Scoreboard
from tests.support.faults.verdict import Row, Verdict, judge
from tests.support.faults.writers import Writers
from tests.support.limits import SEED
from tests.support.processes.forked import ForkedRelay
from tests.support.processes.producer_process import with_savepoints
from tests.support.processes.relay_app import COMMAND, SEEN, STALE
from tests.support.until import until

BATCH: Final = 100
LOOPS: Final = 2

# An event gets its position before the commit; this trigger delays some commits.
_COMMIT_LATE: Final = (
    """CREATE FUNCTION commit_late() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.version = OLD.version + 1 AND random() < 0.004 THEN
            PERFORM pg_sleep(random() * 1.6);
        END IF;
        RETURN NULL;
    END $$""",
    "CREATE CONSTRAINT TRIGGER commit_late AFTER UPDATE ON counters "
    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION commit_late()",
)
_ROWS: Final = """
SELECT id, aggregate_id, CAST(payload AS text), status, retry_count
FROM outbox ORDER BY position
"""
# Settled after an event of its lane with a higher position: its transaction committed late.
_LATE: Final = """
SELECT count(*) FROM (
    SELECT position, max(position) OVER (PARTITION BY lane ORDER BY published_at
        GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
    FROM outbox WHERE status = 'published') AS settled
WHERE position < highest
"""
_OWNERS: Final = """
SELECT lane, name, owner FROM outbox_lanes LEFT JOIN outbox_relays ON id = owner ORDER BY lane
"""


class Owner(NamedTuple):
    """The owner of a lane; name and id are None if it has none."""

    lane: int
    name: str | None
    relay: UUID | None


class Flow:
    """Created by `flowing`, which also ends its processes."""

    def __init__(self, database: str, broker: str, folder: Path, settings: dict[str, str]) -> None:
        self.database, self.broker, self.folder = database, broker, folder
        self.queue = f"flow{uuid4().hex}"
        self.chance = random.Random(SEED)
        self.relays: list[ForkedRelay] = []
        self.command = COMMAND
        self.engine = _engine(database)
        self.writers = Writers(self.engine, SEED)
        self.reader = reader_of(broker, self.queue)
        self._settings = {
            "DATABASE_URL": database,
            "OUTBOX_TO": broker,
            "OUTBOX_DESTINATION": self.queue,
            "OUTRIDER_SEED": str(SEED),
            "OUTBOX_BATCH_SIZE": str(BATCH),
            **settings,
        }

    async def prepare(self, aggregates: int, binding: str) -> None:
        await create_all(self.engine)
        self.writers.aggregates = [f"a{number}" for number in range(aggregates)]
        async with self.engine.begin() as connection:
            await connection.execute(
                text("CREATE TABLE counters (id TEXT PRIMARY KEY, version INT)")
            )
            await connection.execute(
                text("INSERT INTO counters VALUES (:id, 0)"),
                [{"id": a} for a in (*self.writers.aggregates, *self.writers.others)],
            )
            if self.engine.dialect.name == "postgresql":
                for statement in _COMMIT_LATE:
                    await connection.execute(text(statement))
        await self.reader.prepare(binding)

    def start_relay(self, **settings: str) -> ForkedRelay:
        log = self.folder / f"relay-{len(self.relays)}.log"
        relay = ForkedRelay({**self._settings, **settings}, log, self.command)
        self.relays.append(relay)
        return relay

    async def start_relays(self, count: int) -> list[ForkedRelay]:
        """Start relays; return when all are connected."""
        started = [self.start_relay() for _ in range(count)]
        await until(lambda: all(relay.is_ready for relay in started), "all relays have started")
        return started

    async def stop_relays(self) -> None:
        """Terminate all relays; each must end with exit code 0."""
        living = [relay for relay in self.relays if relay.is_alive]
        # A relay that was restarted just now does not handle signals yet.
        await until(lambda: all(relay.is_ready for relay in living), "relays listen to signals")
        for relay in living:
            relay.terminate()
        await until(lambda: not any(relay.is_alive for relay in living), "relays end when asked")
        assert {relay.exit_code for relay in living} <= {0}

    async def owners(self) -> list[Owner]:
        return [Owner(lane, name, _uuid(relay)) for lane, name, relay in await self.ask(_OWNERS)]

    async def lanes_of(self, relay: ForkedRelay) -> dict[int, UUID]:
        """The lanes of a relay, each with the relay's id."""
        held = await self.owners()
        return {o.lane: o.relay for o in held if o.relay and o.name == relay.name}

    async def count(self, condition: str, **values: Any) -> int:
        found = await self.ask(f"SELECT count(*) FROM outbox WHERE {condition}", **values)  # noqa: S608
        return int(found[0][0])

    async def ask(self, query: str, **values: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text(query), values)).all())

    async def arrived(self) -> None:
        """Wait until all committed events are settled and read; give up after the time limit."""

        async def complete() -> bool:
            return not await self.count("status = 'pending'") and self.reader.has(
                await self._recorded()
            )

        try:
            await until(complete, "everything has arrived")
        except AssertionError as late:
            print(late)  # the verdict will say what is missing

    async def verdict(self) -> Verdict:
        """Stop all relays, read the queue to its end, and judge every event."""
        await self.arrived()
        await self.stop_relays()
        await self.reader.silence()
        rows = [Row(_uuid(r[0]), *r[1:]) for r in await self.ask(_ROWS)]
        versions = {row[0]: row[1] for row in await self.ask("SELECT id, version FROM counters")}
        verdict = judge(rows, versions, self.writers, self.reader.deliveries)
        print(f"OUTRIDER_SEED={SEED}: {verdict}; {self.lost_leases} leases lost")
        unclean = ("Traceback", "Exception ignored", "ResourceWarning", "never retrieved")
        assert not [word for relay in self.relays for word in unclean if word in relay.text]
        return verdict

    async def report(self, verdict: Verdict, board: Scoreboard, line: str, **figures: Any) -> None:
        """Write the figures of the verdict to the scoreboard."""
        board.note(line, seed=SEED, **figures, **asdict(verdict))
        for what, times in self.seen.items():
            board.saw(what, times)
        board.saw("duplicate delivered", verdict.duplicates)
        board.saw("late commit found", (await self.ask(_LATE))[0][0])

    @property
    def lost_leases(self) -> int:
        return sum(relay.text.count("lease lost") for relay in self.relays)

    @property
    def stale(self) -> int:
        """How many rows relays changed after they had lost the lanes."""
        lines = [line for relay in self.relays for line in relay.text.splitlines()]
        return sum(int(line.removeprefix(STALE)) for line in lines if line.startswith(STALE))

    @property
    def seen(self) -> Counter[str]:
        """How often relays met each situation, by its name on the scoreboard."""
        found: Counter[str] = Counter()
        for relay in self.relays:
            for line in relay.text.splitlines():
                if line.startswith(SEEN):
                    times, what = line.removeprefix(SEEN).split(" ", 1)
                    found[what] += int(times)
        return found

    async def _recorded(self) -> set[UUID]:
        return {_uuid(row[0]) for row in await self.ask("SELECT id FROM outbox")}

    async def close(self) -> None:
        self.writers.stop()
        for relay in self.relays:
            relay.kill()
        await self.reader.close()
        await self.engine.dispose()


@asynccontextmanager
async def flowing(
    database: str,
    broker: str,
    folder: Path,
    *,
    aggregates: int = 100,
    binding: str = "#",
    **settings: str,
) -> AsyncIterator[Flow]:
    """Create tables, counters and a queue; end all processes at the end, whatever happens."""
    flow = Flow(database, broker, folder, settings)
    try:
        await flow.prepare(aggregates, binding)
        yield flow
    except BaseException:
        for relay in flow.relays:
            print(f"--- {relay.log.name}\n{relay.text[-2000:]}")
        raise
    finally:
        await flow.close()


def _engine(url: str) -> AsyncEngine:
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        engine = create_async_engine(target.set(drivername="sqlite+aiosqlite"))
        with_savepoints(engine.sync_engine)
        return engine
    return create_async_engine(target.set(drivername="postgresql+asyncpg"), pool_size=12)


def _uuid(value: Any) -> Any:
    """SQLite stores UUIDs as text."""
    return UUID(value) if isinstance(value, str) else value

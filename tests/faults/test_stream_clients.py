"""Clients of the live stream that are killed at any moment: each sees all that it wants, once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider import OutboxNames
from outrider.events.patterns import matches
from outrider.recording.rows import insert, row_of
from outrider.store.schema.migrate import create_all
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.limits import FULL, SEED
from tests.support.pages.sse import Client, Cut, Message, Parser
from tests.support.pages.stream_server import SiteProcess, happened, outbox
from tests.support.until import until

CLIENTS, EVENTS, WRITERS = (200, 2_000, 8) if FULL else (20, 300, 8)
AGGREGATES, WINDOW = 100, 50
LONGEST_LIFE = 1.5 if FULL else 0.5
KINDS = ("order.placed", "order.paid", "user.named")

pytestmark = pytest.mark.faults


class Row(NamedTuple):
    delivery_number: int
    kind: str
    aggregate: str
    n: int


class Browser:
    """Connects, reads, is killed, and connects again with the last number it knows."""

    def __init__(self, number: int, wishes: dict[str, Any]) -> None:
        self.chance = random.Random(f"{SEED}.{number}")
        self.wishes = wishes
        self.seen: list[Message] = []
        self.last: int | None = None
        self.lives = Counter[str]()

    def wants(self, row: Row) -> bool:
        kinds = self.wishes.get("type", ["*"])
        aggregates = self.wishes.get("aggregate_id", [row.aggregate])
        of_type = self.wishes.get("aggregate_type", row.kind.partition(".")[0])
        return (
            any(matches(kind, row.kind) for kind in kinds)
            and row.aggregate in aggregates
            and row.kind.startswith(f"{of_type}.")
        )

    async def live(self, ports: list[int]) -> None:
        while True:
            client = Client(self.chance.choice(ports), **self.wishes)
            client.parser = Parser(last_event_id=self.last, messages=self.seen)
            try:
                async with asyncio.timeout(None) as life:
                    # Few are killed before they are answered: on a busy machine all would be.
                    if self.last is not None and self.chance.random() < 0.2:
                        self._limit(life)
                    await client.open(self.last)
                    if client.status == 503:
                        raise Cut  # busy: a browser's script comes again
                    assert client.status == 200, client.status
                    if self.last is not None:
                        self._limit(life)
                    while await client.more():
                        if self.last is None:
                            self._limit(life)
                        self.last = client.last_event_id
            except TimeoutError:
                self.lives["killed"] += 1
            except (Cut, OSError, asyncio.IncompleteReadError):
                self.lives["cut off"] += 1
                await asyncio.sleep(self.chance.uniform(0, 0.1))
            finally:
                client.kill()
                self.last = client.last_event_id

    def _limit(self, life: asyncio.Timeout) -> None:
        now = asyncio.get_running_loop().time()
        life.reschedule(now + self.chance.uniform(0, LONGEST_LIFE))


def wishes(number: int) -> dict[str, Any]:
    some = [f"a{n}" for n in range(number % 7, AGGREGATES, 7)]
    return [
        {},
        {"type": ["order.*"]},
        {"type": ["order.paid", "user.*"], "aggregate_id": some},
        {"aggregate_type": "user"},
        {"aggregate_id": some[:1]},
    ][number % 5]


class Writers:
    """Transactions of many aggregates; some draw their numbers long before they commit."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine, self._left = engine, EVENTS
        self._chance = random.Random(SEED)
        self._locks = [asyncio.Lock() for _ in range(AGGREGATES)]
        self._counts = [0] * AGGREGATES

    async def write(self) -> None:
        while self._left > 0:
            count = self._chance.choice([1, 1, 1, 5])
            self._left -= count
            aggregate = self._chance.randrange(AGGREGATES)
            async with self._locks[aggregate]:
                await self._transaction(aggregate, count)
            await asyncio.sleep(self._chance.uniform(0, 0.02))

    async def _transaction(self, aggregate: int, count: int) -> None:
        first = self._counts[aggregate] + 1
        self._counts[aggregate] += count
        events = [
            happened(n, f"a{aggregate}", self._chance.choice(KINDS))
            for n in range(first, first + count)
        ]
        async with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql" and self._chance.random() < 0.1:
                rows = [row_of(event.to_envelope(), "stream") for event in events]
                await connection.run_sync(insert, OutboxNames(), rows)
                await asyncio.sleep(self._chance.uniform(0, 0.5))
            else:
                outbox.record(connection, *events)

    @property
    def written(self) -> int:
        return sum(self._counts)


@pytest.fixture(params=["postgresql", "sqlite"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    if request.param == "sqlite":
        patient = {"timeout": 60}  # a writer and two relays are after one lock
        made = create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path}/outbox.db", connect_args=patient
        )
    else:
        url = create_database(request.getfixturevalue("services"))
        made = create_async_engine(url.replace("postgresql", "postgresql+asyncpg", 1), pool_size=12)
    await create_all(made)
    yield made
    await made.dispose()


async def delivered(engine: AsyncEngine) -> list[Row]:
    query = "SELECT delivery_number, event_type, aggregate_id, CAST(payload AS text) FROM outbox"
    async with engine.connect() as connection:
        found = await connection.execute(
            text(f"{query} WHERE delivery_number IS NOT NULL ORDER BY 1")
        )
        return [Row(d, kind, a, int("".join(filter(str.isdigit, p)))) for d, kind, a, p in found]


async def test_killed_clients_see_all_they_want_once_and_in_order(
    engine: AsyncEngine, services: Services, tmp_path: Path
) -> None:
    # given
    url = engine.url.render_as_string(hide_password=False)
    sites = [SiteProcess(url, tmp_path / f"{n}.log", relay=True, window=WINDOW) for n in range(2)]
    browsers = [Browser(number, wishes(number)) for number in range(CLIENTS)]
    lives: list[asyncio.Task[None]] = []
    try:
        for site in sites:
            await site.started()
        ports = [site.port for site in sites]
        lives += [asyncio.create_task(browser.live(ports)) for browser in browsers]
        await until(lambda: all(b.last is not None for b in browsers), "all have been connected")

        # when
        writers = Writers(engine)
        writing = [asyncio.create_task(writers.write()) for _ in range(WRITERS)]
        await until(lambda: writers.written > EVENTS // 2, "half of it is written")
        sites[0].restart()
        await asyncio.gather(*writing)
        await sites[0].started()

        async def all_delivered() -> bool:
            return len(await delivered(engine)) == writers.written

        await until(all_delivered, "everything is delivered")
        rows = await delivered(engine)
        wanted = [[row for row in rows if browser.wants(row)] for browser in browsers]
        await until(
            lambda: all(
                not w or (b.seen[-1:] and b.seen[-1].id >= w[-1].delivery_number)
                for b, w in zip(browsers, wanted, strict=True)
            ),
            "everybody has seen the last event",
        )
    finally:
        for life in lives:
            life.cancel()
        ends = await asyncio.gather(*lives, return_exceptions=True)
        for site in sites:
            site.kill()

    # then
    total = sum((b.lives for b in browsers), Counter[str]())
    print(f"OUTRIDER_SEED={SEED}: {len(rows)} events, {CLIENTS} clients, {dict(total)}")
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    assert all(browser.lives for browser in browsers), "each was killed at least once"
    for browser, own in zip(browsers, wanted, strict=True):
        got = [(m.id, m.type, m.data["subject"], m.n) for m in browser.seen]
        assert got == own, f"{browser.wishes}; OUTRIDER_SEED={SEED}"
    assert in_order(rows)
    for site in sites:
        assert "Traceback" not in site.log.read_text()


def in_order(rows: list[Row]) -> bool:
    """Each aggregate's events as they happened."""
    last = Counter[tuple[str, str]]()
    for row in rows:
        aggregate = (row.kind.partition(".")[0], row.aggregate)
        if row.n <= last[aggregate]:
            return False
        last[aggregate] = row.n
    return True

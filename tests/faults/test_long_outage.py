"""An outage of ten minutes, lived through by a relay whose clock runs twenty times as fast."""

from __future__ import annotations

import asyncio
import selectors
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import DomainEvent, Outbox, OutboxRelay, RelayConfig, SqlOutboxStore, create_all
from outrider.brokers.redis import RedisPublisher
from outrider.store.engines import open_engine
from outrider.testing.services import Server, Services
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL

SPEED = 20
OUTAGE = 600 if FULL else 30
EVENTS = 200

pytestmark = pytest.mark.faults


class FastSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / SPEED if timeout else timeout)  # type: ignore[no-any-return]


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(FastSelector())

    def time(self) -> float:
        return super().time() * SPEED


@pytest.mark.fault("B1", line="S-11")
def test_outage_of_ten_minutes_fails_no_event_and_ends_by_itself(
    services: Services, tmp_path: Path, scoreboard: Scoreboard
) -> None:
    server = services.another("redis")
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        lasted, failed, left = runner.run(live_through(server, tmp_path))
    server.stop()

    scoreboard.note("S-11", seconds=round(lasted), events=2 * EVENTS, failed=failed, lost=left)
    assert (failed, left) == (0, 0)


async def live_through(server: Server, folder: Path) -> tuple[float, int, int]:
    """How long the outage was, how many events were blamed for it, how many did not arrive."""
    engine, stream = open_engine(f"sqlite:///{folder / 'outbox.db'}"), uuid4().hex
    loop, publisher = asyncio.get_running_loop(), RedisPublisher(server.url, stream=stream)
    await create_all(engine)
    async with OutboxRelay(SqlOutboxStore(engine), publisher, RelayConfig()):
        await record(engine)
        server.own()
        await asyncio.to_thread(server.kill)
        began = loop.time()
        await record(engine)
        await asyncio.sleep(OUTAGE)
        lasted = loop.time() - began
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(SPEED * 120):
            while await count(engine, "status = 'pending'"):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(1)
    failed = await count(engine, "status = 'failed' OR retry_count > 0")
    await engine.dispose()
    async with Redis.from_url(server.url) as client:
        found = {fields[b"ce-id"] for _, fields in await client.xrange(stream)}
    return lasted, failed, 2 * EVENTS - len(found)


async def record(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        events = [DomainEvent("thing.changed", "thing", n % 7, {"n": n}) for n in range(EVENTS)]
        Outbox().record(connection, *events)


async def count(engine: AsyncEngine, condition: str) -> int:
    async with engine.connect() as connection:
        query = text(f"SELECT count(*) FROM outbox WHERE {condition}")  # noqa: S608
        return int(await connection.scalar(query))

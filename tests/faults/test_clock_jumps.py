"""Clocks of relays and of the database that jump by an hour, to and fro."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from outrider.testing.services import Services
from tests.support.faults.clocks import Clock, JumpingPostgres
from tests.support.faults.flow import BATCH, LOOPS, Flow, flowing
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL, SEED
from tests.support.until import until

JUMPS = 50 if FULL else 2
HOUR = 3_600
RELAYS = 2
SETTINGS = {"OUTBOX_LEASE": "2", "OUTBOX_POLL_INTERVAL_MS": "300"}

pytestmark = pytest.mark.faults


@pytest.fixture
def database(services: Services) -> Iterator[JumpingPostgres]:
    server = services.another(JumpingPostgres)
    yield server
    server.stop()


async def follows(flow: Flow, clock: Clock) -> bool:
    """Whether the database is as far off as its clock says; an hour is far, a minute is not."""
    [(now,)] = await flow.ask("SELECT extract(epoch FROM clock_timestamp())")
    return abs(float(now) - time.time() - clock.off) < HOUR / 2


async def flows_on(flow: Flow, what: str) -> None:
    before = len(flow.reader.deliveries)
    await until(lambda: len(flow.reader.deliveries) > before + 20, f"events flow after {what}")


@pytest.mark.fault("T1", line="S-8")
async def test_clocks_that_jump_lose_nothing_and_keep_the_order(
    services: Services, database: JumpingPostgres, tmp_path: Path, scoreboard: Scoreboard
) -> None:
    faked = {"database": database.clock, "relays": Clock(tmp_path / "clock")}
    settings = {**SETTINGS, **faked["relays"].environment}
    async with flowing(database.url, services.rabbitmq.url, tmp_path, **settings) as flow:
        # given
        async with flow.engine.begin() as connection:  # it sleeps by the clock that jumps
            await connection.execute(text("ALTER TABLE counters DISABLE TRIGGER commit_late"))
        await flow.reader.start()
        started = await flow.start_relays(RELAYS)
        before = [relay.pid for relay in started]
        flow.writers.start(writers=4, pause=0.02)
        await flows_on(flow, "the start")

        # when
        for number in range(JUMPS):
            where, clock = [*faked.items()][number % 2]
            clock.jump(flow.chance.choice([off for off in (-HOUR, 0, HOUR) if off != clock.off]))
            await flows_on(flow, f"a jump of the {where} to {clock.off:+} s")
            assert await follows(flow, database.clock)
        await flow.writers.stopped()

        # then
        assert [relay.pid for relay in started if relay.is_alive] == before
        verdict = await flow.verdict()
        in_hand = (JUMPS + flow.lost_leases) * RELAYS * LOOPS * BATCH
        await flow.report(verdict, scoreboard, "S-8", faults=JUMPS, bound=in_hand)
        assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"

"""From the writer's commit to one row in another database, while processes are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.effects import assert_once_and_in_order, effects_database, effects_in
from tests.support.faults.flow import Flow
from tests.support.limits import FULL
from tests.support.processes.effects_app import CONSUME, prepare_broker
from tests.support.processes.forked import ForkedRelay
from tests.support.until import until

EVENTS, AGGREGATES, KILLS = (10_000, 500, 50) if FULL else (600, 60, 4)
BETWEEN_KILLS = 1.0 if FULL else 0.5
SETTINGS = {"OUTBOX_LEASE": "1", "OUTBOX_POLL_INTERVAL_MS": "200"}

pytestmark = pytest.mark.faults


@pytest.mark.fault("R1", "R11")
@pytest.mark.parametrize("kind", ["rabbitmq", "kafka", "nats", "redis"])
async def test_every_effect_once_and_in_order_whoever_is_killed(
    services: Services, tmp_path: Path, kind: str
) -> None:
    url, name = getattr(services, kind).url, f"flow{uuid4().hex[:12]}"
    settings = {**SETTINGS, "OUTBOX_TO": url, "OUTBOX_DESTINATION": name}
    flow = Flow(create_database(services), services.rabbitmq.url, tmp_path, settings)
    processes: list[ForkedRelay] = []
    try:
        # given
        await flow.prepare(AGGREGATES, "#")
        effects = await effects_database(services)
        environment = {**settings, "EFFECTS_DATABASE": effects}
        await prepare_broker(url, name)
        for number in range(2):
            log = tmp_path / f"consumer-{number}.log"
            processes.append(ForkedRelay(environment, log, CONSUME))
        await until(lambda: all(p.is_ready for p in processes), "consumers have started")
        processes += await flow.start_relays(2)

        # when
        flow.writers.start(writers=4, events=EVENTS, pause=BETWEEN_KILLS * KILLS * 4 / EVENTS)
        for _ in range(KILLS):
            await asyncio.sleep(flow.chance.uniform(0, 2 * BETWEEN_KILLS))
            flow.chance.choice(processes).restart()
        await flow.writers.finished()

        # then
        async def complete() -> bool:
            return len(await effects_in(effects)) >= len(flow.writers.committed)

        await until(complete, "everything took effect")
        assert_once_and_in_order(flow, await effects_in(effects))
    except BaseException:
        for process in processes:
            print(f"--- {process.log.name}\n{process.text[-3000:]}")
        raise
    finally:
        for process in processes:
            process.kill()
        await flow.close()

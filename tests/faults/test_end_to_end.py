"""From the writer's commit to one row in another database, while processes are killed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.store.schema.migrate import create_all
from outrider.testing.services import Services
from tests.support.faults.flow import FULL, SEED, Flow, fresh_database, until
from tests.support.processes.effects_app import CONSUME, EFFECTS, prepare_broker
from tests.support.processes.forked import ForkedRelay

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
    flow = Flow(fresh_database(services), services.rabbitmq.url, tmp_path, settings)
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


async def effects_database(services: Services) -> str:
    """A database of the consumer's own, with its inbox and the table of effects."""
    url = make_url(fresh_database(services)).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(url)
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.execute(text(EFFECTS))
    await engine.dispose()
    return url.render_as_string(hide_password=False)


async def effects_in(url: str) -> list[tuple[UUID, str, int]]:
    link = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return [
            tuple(r)
            for r in await link.fetch("SELECT id, aggregate, n FROM effects ORDER BY number")
        ]
    finally:
        await link.close()


def assert_once_and_in_order(flow: Flow, effects: list[tuple[UUID, str, int]]) -> None:
    ids = [event_id for event_id, _, _ in effects]
    again = len(ids) - len(set(ids))
    missing, unexpected = flow.writers.committed - set(ids), set(ids) - flow.writers.committed
    per_aggregate = defaultdict(list)
    for _, aggregate, number in effects:
        per_aggregate[aggregate].append(number)
    reordered = [a for a, numbers in per_aggregate.items() if numbers != sorted(numbers)]
    print(f"OUTRIDER_SEED={SEED}: {len(ids)} effects, {again} again, {len(missing)} missing")
    assert (again, len(missing), len(unexpected), reordered) == (0, 0, 0, [])

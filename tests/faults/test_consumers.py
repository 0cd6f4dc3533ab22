"""Consumers that are killed, and messages that come twice: every effect happens once."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from outrider import EventEnvelope, EventId
from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQPublisher, Topology
from outrider.testing.services import Services
from tests.support.faults.effects import effects_database
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL, SEED
from tests.support.processes.effects_app import CONSUME
from tests.support.processes.forked import ForkedRelay
from tests.support.until import until

KILLS, EVENTS = (500, 100_000) if FULL else (12, 600)
AT_ONCE = 4

pytestmark = pytest.mark.faults


def changed(number: int) -> EventEnvelope:
    return EventEnvelope(
        event_id=EventId.new(),
        event_type="thing.changed",
        aggregate_type="thing",
        aggregate_id=f"a{number % 1000}",
        occurred_at=datetime.now(UTC),
        data=b'{"n": %d}' % number,
    )


@pytest.mark.fault(line="S-6")
async def test_every_effect_happens_once_whoever_is_killed_and_whatever_comes_twice(
    services: Services, tmp_path: Path, scoreboard: Scoreboard
) -> None:
    url, name, chance = services.rabbitmq.url, f"effects{uuid4().hex}", random.Random(SEED)
    queue = Queue(name, (Binding(name, "#"),))
    publisher = RabbitMQPublisher(url, exchange=name, topology=Topology(queues=(queue,)))
    effects = await effects_database(services)
    environment = {
        "OUTBOX_TO": url,
        "OUTBOX_DESTINATION": name,
        "EFFECTS_DATABASE": effects,
        "EFFECTS_SHARED": "1",
    }
    sent: list[EventEnvelope] = []
    consumers: list[ForkedRelay] = []
    try:
        # given
        await publisher.open()
        for number in range(AT_ONCE):
            log = tmp_path / f"consumer-{number}.log"
            consumers.append(ForkedRelay(environment, log, CONSUME))

        # when
        for _ in range(KILLS):
            new = [changed(len(sent) + number) for number in range(EVENTS // KILLS)]
            sent += new
            again = chance.sample(sent, len(new) // 10)
            await publisher.publish_all([*new, *again])
            victim = chance.choice(consumers)
            await until(lambda: victim.is_ready, "it is at work")  # noqa: B023 - called at once
            await asyncio.sleep(chance.uniform(0, 0.2))
            victim.restart()

        # then
        link = await asyncpg.connect(effects.replace("+asyncpg", ""))

        async def are_all_there() -> bool:
            return await link.fetchval("SELECT count(DISTINCT id) FROM effects") == EVENTS

        await until(are_all_there, "everything took effect")
        await until(lambda: all(consumer.is_ready for consumer in consumers), "all listen")
        for consumer in consumers:
            consumer.terminate()
        await until(lambda: not any(c.is_alive for c in consumers), "consumers end when asked")
        total = await link.fetchval("SELECT count(*) FROM effects")
        marks = await link.fetchval("SELECT count(*) FROM processed_events")
        await link.close()
        figures = {"events": EVENTS, "sent_again": KILLS * (EVENTS // KILLS // 10), "seed": SEED}
        scoreboard.note("S-6", faults=KILLS, **figures, twice=total - EVENTS, never=EVENTS - marks)
        assert (total, marks) == (EVENTS, EVENTS), f"OUTRIDER_SEED={SEED}"
    except BaseException:
        for consumer in consumers:
            print(f"--- {consumer.log.name}\n{consumer.text[-3000:]}")
        raise
    finally:
        for consumer in consumers:
            consumer.kill()
        await publisher.close()

"""One outbox, three sinks: one that is down holds up nobody else, and catches up afterwards."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider import DomainEvent, Outbox, OutboxRelay, RelayConfig, SqlOutboxStore, create_all
from outrider.brokers.nats import NatsPublisher
from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQPublisher, Topology
from outrider.brokers.redis import RedisPublisher
from outrider.ports import EventPublisher
from outrider.testing.services import Server, Services
from tests.support.databases import create_database
from tests.support.limits import FULL
from tests.support.until import until

OUTAGE = 60 if FULL else 4
BATCHES, EACH, AGGREGATES = 20, 50, 40
SINKS = ("rabbitmq", "redis", "nats")
CONFIG = RelayConfig(poll_interval=timedelta(milliseconds=200))

pytestmark = pytest.mark.faults

outbox = Outbox(routes={"thing.*": SINKS, "thing.secret": ()})


@pytest.fixture
def broker(services: Services) -> Server:
    return services.victim("rabbitmq")


def publishers(services: Services, broker: Server) -> dict[str, EventPublisher]:
    name = f"fan{uuid4().hex[:12]}"
    queues = Topology(queues=(Queue(name, (Binding(name, "#"),)),))
    return {
        "rabbitmq": RabbitMQPublisher(broker.url, exchange=name, topology=queues),
        "redis": RedisPublisher(services.redis.url, stream=name),
        "nats": NatsPublisher(services.nats.url, stream=name, subject=name),
    }


async def record(engine: AsyncEngine) -> None:
    for batch in range(BATCHES):
        async with engine.begin() as connection:
            events = [
                DomainEvent("thing.changed", "thing", f"a{n % AGGREGATES}", {"n": batch * EACH + n})
                for n in range(EACH)
            ]
            outbox.record(connection, *events)


async def published(engine: AsyncEngine) -> dict[str, int]:
    query = "SELECT sink, count(*) FROM outbox WHERE status = 'published' GROUP BY sink"
    async with engine.connect() as connection:
        return {row[0]: row[1] for row in await connection.execute(text(query))}


@pytest.mark.fault("B1")
async def test_sink_that_is_down_holds_up_nobody_else_and_catches_up(
    services: Services, broker: Server
) -> None:
    url = create_database(services).replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    await create_all(engine)
    count = BATCHES * EACH
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        for sink, publisher in publishers(services, broker).items():
            relay = OutboxRelay(SqlOutboxStore(engine, sink=sink), publisher, CONFIG)
            await stack.enter_async_context(relay)

        # given all three work
        await record(engine)

        async def everywhere() -> bool:
            return await published(engine) == dict.fromkeys(SINKS, count)

        await until(everywhere, "everything is at all sinks")

        # when one is down
        broker.own()
        await asyncio.to_thread(broker.kill)
        await record(engine)

        # then the others have everything while it is down
        async def elsewhere() -> bool:
            done = await published(engine)
            return done["redis"] == done["nats"] == 2 * count

        await until(elsewhere, "the others have everything")
        await asyncio.sleep(OUTAGE)
        assert (await published(engine))["rabbitmq"] < 2 * count

        # and it catches up when it is back, at no event's cost
        await asyncio.to_thread(broker.start)

        async def caught_up() -> bool:
            return await published(engine) == dict.fromkeys(SINKS, 2 * count)

        await until(caught_up, "the third has caught up")
        async with engine.connect() as connection:
            query = "SELECT count(*) FROM outbox WHERE retry_count > 0 OR status <> 'published'"
            assert await connection.scalar(text(query)) == 0

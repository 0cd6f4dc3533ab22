"""A sink that changes under the relay: partitions are added, or all of its data is lost."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from aiokafka.admin import NewPartitions
from redis.asyncio import Redis
from sqlalchemy import text

from outrider import DomainEvent, Outbox, OutboxRelay, RelayConfig, SqlOutboxStore, create_all
from outrider.admin.filters import EventFilter
from outrider.admin.replay import Replay
from outrider.brokers.redis import RedisPublisher
from outrider.store.engines import open_engine
from outrider.testing.services import Services
from tests.support.brokers.events import event
from tests.support.brokers.kafka_topics import (
    administering,
    create,
    publishing,
    records_in,
    settle,
    unique,
)
from tests.support.databases import create_database
from tests.support.until import until

pytestmark = pytest.mark.faults


@pytest.mark.fault("B14")
async def test_partitions_added_while_running_lose_nothing(services: Services) -> None:
    url, topic = services.kafka.url, unique()
    await create(url, topic, 2)
    first, second, third = ([event(f"a{n % 9}") for n in range(40)] for _ in range(3))

    async with publishing(url, topic) as publisher:
        await settle(publisher, first)
        async with administering(url) as admin:
            await admin.create_partitions({topic: NewPartitions(4)})
        await settle(publisher, second)
    async with publishing(url, topic) as newcomer:
        await settle(newcomer, third)

    records = await records_in(url, topic)
    stored = [dict(record.headers)["ce_id"].decode() for record in records]
    assert sorted(stored) == sorted(str(e.event_id) for e in (*first, *second, *third))
    assert {record.partition for record in records} == {0, 1, 2, 3}


@pytest.mark.fault("B18")
async def test_sink_that_lost_everything_gets_it_again_in_order(services: Services) -> None:
    # given
    engine, stream = open_engine(create_database(services)), uuid4().hex
    await create_all(engine)
    async with engine.begin() as connection:
        events = [DomainEvent("thing.changed", "thing", n % 3, {"n": n}) for n in range(60)]
        Outbox().record(connection, *events)
    publisher = RedisPublisher(services.redis.url, stream=stream)
    config = RelayConfig(poll_interval=timedelta(milliseconds=100))
    async with (
        Redis.from_url(services.redis.url) as redis,
        OutboxRelay(SqlOutboxStore(engine), publisher, config),
    ):

        async def has_all() -> bool:
            query = text("SELECT count(*) FROM outbox WHERE status = 'pending'")
            async with engine.connect() as connection:
                pending = await connection.scalar(query)
            return pending == 0 and await redis.xlen(stream) == 60

        await until(has_all, "all is there")

        # when
        await redis.delete(stream)
        replay = Replay(engine, who="ada")
        await replay.run(await replay.begin(EventFilter(status="published")))

        # then
        await until(has_all, "all is there again")
        found = [fields[b"ce-id"].decode() for _, fields in await redis.xrange(stream)]
    for aggregate in range(3):
        wanted = [str(e.event_id) for e in events if e.aggregate_id == str(aggregate)]
        assert [id for id in found if id in set(wanted)] == wanted
    await engine.dispose()

"""A NATS cluster loses the leader of a stream, again and again, while events flow through it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from outrider import (
    DomainEvent,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
)
from outrider.brokers.nats import NatsConfig, NatsPublisher, NatsSource
from outrider.errors import BrokerUnavailable
from outrider.testing.conformance.receiving import acknowledge
from outrider.testing.conformance.receiving import receive as receive_or_none
from outrider.testing.services import Services
from tests.support.faults.nats_cluster import NatsCluster
from tests.support.limits import FULL
from tests.support.until import until

KILLS = 20 if FULL else 1
AGGREGATES = 20
BETWEEN = 200
CONFIG = NatsConfig(
    replicas=3,
    connect_timeout=timedelta(seconds=2),
    publish_timeout=timedelta(seconds=5),
    request_timeout=timedelta(seconds=2),
)

pytestmark = pytest.mark.faults


@pytest.fixture
async def cluster(services: Services) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(services)
    try:
        await cluster.ready()
        yield cluster
    finally:
        await cluster.stop()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/outbox.db")
    await create_all(engine)
    yield engine
    await engine.dispose()


class Writer:
    """Records events of many aggregates, each with the next number of its aggregate."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.numbers: dict[str, int] = defaultdict(int)
        self.recorded = 0
        self._engine, self._outbox, self._stopping = engine, Outbox(), False
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while not self._stopping:
            async with AsyncSession(self._engine) as session, session.begin():
                for turn in range(10):
                    name = f"a{(self.recorded + turn) % AGGREGATES}"
                    self.numbers[name] += 1
                    event = DomainEvent("thing.changed", "thing", name, {"n": self.numbers[name]})
                    self._outbox.record(session, event)
            self.recorded += 10
            await asyncio.sleep(0.005)

    async def goes_on(self) -> None:
        goal = self.recorded + BETWEEN
        await until(lambda: self._task.done() or self.recorded >= goal, "the writer goes on")

    async def stop(self) -> None:
        self._stopping = True
        await self._task


async def numbers_in(cluster: NatsCluster, stream: str) -> dict[str, list[int]]:
    """Per aggregate, in the stream's order, repetitions left out."""
    found: dict[str, dict[int, None]] = defaultdict(dict)
    async with cluster.jetstream() as js:
        count = (await js.stream_info(stream)).state.messages
        reader = await js.subscribe("", stream=stream, ordered_consumer=True)
        for _ in range(count):
            message = await reader.next_msg(timeout=30)
            number = int(message.data.partition(b":")[2].strip(b" }"))
            found[(message.headers or {})["ce-subject"]].setdefault(number)
    return {name: list(numbers) for name, numbers in found.items()}


@pytest.mark.fault("B2")
async def test_relay_loses_nothing_and_keeps_order_when_leaders_are_killed(
    cluster: NatsCluster, engine: AsyncEngine
) -> None:
    # given
    publisher = NatsPublisher(cluster.urls, config=CONFIG)
    await until(lambda: opens(publisher), "the stream is created")
    relay = OutboxRelay(SqlOutboxStore(engine), publisher, RelayConfig(batch_size=50))
    writer = Writer(engine)

    # when
    async with relay:
        for _ in range(KILLS):
            await writer.goes_on()
            leader = await cluster.leader_of("EVENTS")
            leader.own()
            await asyncio.to_thread(leader.kill)
            await flows(cluster)
            await asyncio.to_thread(leader.start)
            await until(lambda: cluster.is_complete("EVENTS"), "all replicas have caught up")
        await writer.goes_on()
        await writer.stop()
        await until(lambda: is_empty(engine), "everything is published")

    # then
    found = await numbers_in(cluster, "EVENTS")
    assert found == {name: list(range(1, last + 1)) for name, last in writer.numbers.items()}


async def opens(publisher: NatsPublisher) -> bool:
    """In a cluster that has just begun, it takes some time to place a stream."""
    with suppress(BrokerUnavailable):
        await publisher.open()
        return True
    return False


async def is_empty(engine: AsyncEngine) -> bool:
    return await SqlOutboxStore(engine).count_pending(1) == 0


async def flows(cluster: NatsCluster) -> None:
    """More is stored than there was, by the two that are left."""
    await cluster.leader_of("EVENTS")
    start = await cluster.stream("EVENTS")

    async def has_more() -> bool:
        now = await cluster.stream("EVENTS")
        return now is not None and start is not None and now.state.last_seq > start.state.last_seq

    await until(has_more, "events flow again")


async def test_source_loses_nothing_and_keeps_order_when_leaders_are_killed(
    cluster: NatsCluster,
) -> None:
    # given
    received: list[int] = []
    total = (KILLS + 1) * BETWEEN
    publisher = NatsPublisher(cluster.urls, config=CONFIG)
    await until(lambda: opens(publisher), "the stream is created")
    await publisher.close()
    async with cluster.jetstream() as js:
        for number in range(total):
            await js.publish("events.thing", str(number).encode())

    async def receive() -> None:
        async with NatsSource(cluster.urls, group="billing", config=CONFIG) as source:
            while not received or received[-1] < total - 1:
                for delivery in await receive_or_none(source, 10):
                    received.append(int(delivery.message.data))
                    await acknowledge(source, delivery)
                await asyncio.sleep(0.02)

    # when
    task = asyncio.create_task(receive())
    for turn in range(KILLS):
        goal = (turn + 1) * BETWEEN // 2
        await until(lambda: task.done() or max(received, default=0) >= goal, "it receives")  # noqa: B023
        leader = await cluster.leader_of("EVENTS")
        leader.own()
        await asyncio.to_thread(leader.kill)
        await cluster.leader_of("EVENTS")
        await asyncio.to_thread(leader.start)
        await until(lambda: cluster.is_complete("EVENTS"), "all replicas have caught up")
    await until(task.done, "all are received")
    task.result()

    # then
    assert list(dict.fromkeys(received)) == list(range(total))

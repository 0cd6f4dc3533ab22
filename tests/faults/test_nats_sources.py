"""Sources of one group come and go, with and without a word, and the server is killed too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from outrider import BrokerUnavailable, EventEnvelope, EventId
from outrider.brokers.nats import NatsConfig, NatsPublisher, NatsSource
from outrider.ports import Delivery
from outrider.testing.services import Server, Services
from tests.support.limits import FULL, MAX_WAIT_S, SEED
from tests.support.until import until

EVENTS = 20_000 if FULL else 600
SOURCES = 4
KILLS = 20 if FULL else 1
CONFIG = NatsConfig(
    prefetch=20, connect_timeout=timedelta(seconds=2), request_timeout=timedelta(seconds=2)
)

pytestmark = pytest.mark.faults


@pytest.fixture
def server(services: Services) -> Iterator[Server]:
    server = services.another("nats")
    yield server
    server.stop()


class Log:
    """What was handled, in order, by whichever source."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.chance = random.Random(SEED)

    @property
    def is_complete(self) -> bool:
        return len(set(self.numbers)) == EVENTS

    async def fill(self, url: str) -> None:
        now = datetime.now(UTC)
        async with NatsPublisher(url, config=CONFIG) as publisher:
            for number in range(EVENTS):
                event = EventEnvelope(
                    event_id=EventId.new(),
                    event_type="order.placed",
                    aggregate_type="order",
                    aggregate_id="a",
                    occurred_at=now,
                    data=str(number).encode(),
                )
                await publisher.publish(event)

    async def consume(self, source: NatsSource) -> None:
        while not self.is_complete:
            try:
                for delivery in await source.receive(self.chance.randint(1, 10)):
                    await self._handle(source, delivery)
                await self._misbehave(source)
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
        await source.close()

    async def _handle(self, source: NatsSource, delivery: Delivery) -> None:
        await asyncio.sleep(self.chance.random() * 0.002)
        if not delivery.lost and delivery.envelope is not None:
            self.numbers.append(int(delivery.envelope.data))
            if self.chance.random() < 0.95:  # the rest is acknowledged when it comes again
                with suppress(BrokerUnavailable):
                    await source.acknowledge(delivery)

    async def _misbehave(self, source: NatsSource) -> None:
        dice = self.chance.random()
        if dice < 0.05 and source._connection:
            source._connection.abort()
        elif dice < 0.1:
            await source.close()
            await source.open()


async def test_sources_that_come_and_go_lose_nothing_and_keep_order(server: Server) -> None:
    # given
    log = Log()
    await log.fill(server.url)
    sources = [NatsSource(server.url, group="billing", config=CONFIG) for _ in range(SOURCES)]

    # when
    consuming = [asyncio.create_task(log.consume(source)) for source in sources]
    for number in range(KILLS):
        share = (number + 1) * EVENTS // (KILLS + 1)
        await until(lambda: len(set(log.numbers)) >= share, "events are handled")  # noqa: B023
        server.own()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    async with asyncio.timeout(MAX_WAIT_S):
        await asyncio.gather(*consuming)

    # then
    assert list(dict.fromkeys(log.numbers)) == list(range(EVENTS)), f"OUTRIDER_SEED={SEED}"

"""The conformance of RabbitMQSource: each kind of queue, and each way to be the only one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aio_pika
import pytest

from outrider import EventEnvelope
from outrider.brokers.rabbitmq import (
    Binding,
    Queue,
    RabbitMQPublisher,
    RabbitMQSource,
    Topology,
)
from outrider.testing.conformance import DeadLetter, SourceHarness, SourceSuite
from outrider.testing.faulty_proxy import FaultyProxy
from outrider.testing.services import Server, Services
from tests.support.brokers.rabbitmq_queues import messages_in, noted_on_disk, unique


class RabbitMQGroup(SourceHarness):
    def __init__(self, server: Server, proxy: FaultyProxy, **settings: object) -> None:
        self._server, self._proxy = server, proxy
        self._name = unique("conformance")
        self._read: list[DeadLetter] = []
        self.secrets = [server.password]
        queue = Queue(self._name, (Binding(self._name),), **settings)  # type: ignore[arg-type]
        self._topology = Topology(queues=(queue,))
        self._is_quorum = queue.kind == "quorum"

    def source(self) -> RabbitMQSource:
        url = self._proxy.url(self._server.url)
        return RabbitMQSource(url, queue=self._name, topology=self._topology)

    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        url, name = self._server.url, self._name
        async with RabbitMQPublisher(url, exchange=name, topology=self._topology) as publisher:
            await publisher.publish_all(envelopes)

    async def send_garbage(self, body: bytes, /) -> None:
        async with await aio_pika.connect(self._server.url) as connection:
            exchange = await (await connection.channel()).get_exchange(self._name)
            await exchange.publish(aio_pika.Message(body), "order.garbage")

    async def dead_letters(self) -> list[DeadLetter]:
        self._read += [
            DeadLetter(each.body, str(each.headers["dead-letter-reason"]))
            for each in await messages_in(self._server.url, f"{self._name}.dlq")
        ]
        return list(self._read)

    async def stop(self) -> None:
        if self._is_quorum:
            await noted_on_disk(self._server, f"{self._name}.crashes")
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        self._proxy.refuse()
        yield
        self._proxy.heal()


@pytest.fixture
def server(services: Services) -> Server:
    return services.victim("rabbitmq")


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy("127.0.0.1", server.port) as proxy:
        yield proxy


class TestSingleActiveConsumerOfAClassicQueue(SourceSuite):
    @pytest.fixture
    def source(self, server: Server, proxy: FaultyProxy) -> SourceHarness:
        return RabbitMQGroup(server, proxy, single_active_consumer=True)


class TestSingleActiveConsumerOfAQuorumQueue(SourceSuite):
    @pytest.fixture
    def source(self, server: Server, proxy: FaultyProxy) -> SourceHarness:
        return RabbitMQGroup(server, proxy, single_active_consumer=True, kind="quorum")


class TestExclusiveConsumerOfAClassicQueue(SourceSuite):
    @pytest.fixture
    def source(self, server: Server, proxy: FaultyProxy) -> SourceHarness:
        return RabbitMQGroup(server, proxy)

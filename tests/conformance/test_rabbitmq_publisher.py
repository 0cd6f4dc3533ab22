"""The conformance of RabbitMQPublisher, on a server of its own that is killed now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aio_pika.abc import AbstractIncomingMessage
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from outrider import EventEnvelope
from outrider.brokers.rabbitmq import (
    Binding,
    Queue,
    RabbitMQConfig,
    RabbitMQPublisher,
    Topology,
)
from outrider.testing.conformance import PublisherSuite, SinkHarness, StoredMessage
from outrider.testing.faulty_proxy import FaultyProxy
from outrider.testing.services import Server, Services
from tests.support.brokers.events import event
from tests.support.brokers.rabbitmq_queues import messages_in, unique

MAX_BYTES = 210 * 1024


class RabbitMQSink(SinkHarness):
    def __init__(self, server: Server, proxy: FaultyProxy) -> None:
        self._server, self._proxy = server, proxy
        self._name = unique("conformance")
        self._read: list[StoredMessage] = []
        self.secrets = [server.password]

    def publisher(self) -> RabbitMQPublisher:
        queue = Queue(self._name, (Binding(self._name, "order.*"),))
        config = RabbitMQConfig(max_message_size=MAX_BYTES)
        url, topology = self._proxy.url(self._server.url), Topology(queues=(queue,))
        return RabbitMQPublisher(url, exchange=self._name, topology=topology, config=config)

    async def stored(self) -> list[StoredMessage]:
        self._read += [
            stored_message(each) for each in await messages_in(self._server.url, self._name)
        ]
        return list(self._read)

    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        return event(aggregate_id, data=b"x" * (MAX_BYTES + 1))

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        self._proxy.refuse()
        yield
        self._proxy.heal()


def stored_message(found: AbstractIncomingMessage) -> StoredMessage:
    headers = {name: str(value) for name, value in found.headers.items()}
    message = RabbitMQMessage(headers=headers, content_type=found.content_type, body=found.body)
    attributes = {
        name.removeprefix("ce-"): value for name, value in headers.items() if name.startswith("ce-")
    }
    attributes["datacontenttype"] = str(found.content_type)
    assert found.message_id == attributes["id"]
    return StoredMessage(attributes, found.body, from_binary(message, JSONFormat()))


@pytest.fixture
def server(services: Services) -> Server:
    return services.victim("rabbitmq")


class TestRabbitMQPublisher(PublisherSuite):
    @pytest.fixture
    async def sink(self, server: Server) -> AsyncIterator[SinkHarness]:
        async with FaultyProxy("127.0.0.1", server.port) as proxy:
            yield RabbitMQSink(server, proxy)

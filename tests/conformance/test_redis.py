"""Redis Streams, beside the promises that every publisher and every source makes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from redis.asyncio import Redis

from outrider import EventEnvelope
from outrider.brokers.redis import RedisConfig, RedisPublisher, RedisSource
from outrider.testing.conformance import (
    DeadLetter,
    PublisherSuite,
    SinkHarness,
    SourceHarness,
    SourceSuite,
    StoredMessage,
)
from outrider.testing.conformance.events import event
from outrider.testing.services import Server, Services

CONFIG = RedisConfig(max_message_size=210 * 1024, takeover_after=timedelta(seconds=2))


@pytest.fixture
def server(services: Services) -> Server:
    return services.victim("redis")


class Stream:
    """A stream of its own on a private server."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"events.{uuid4().hex}"

    async def entries(self, name: str) -> list[dict[bytes, bytes]]:
        async with Redis.from_url(self.server.url) as client:
            return [fields for _, fields in await client.xrange(name)]

    def publisher(self) -> RedisPublisher:
        return RedisPublisher(self.server.url, stream=self.name, config=CONFIG)

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)
        async with Redis.from_url(self.server.url) as client, asyncio.timeout(60):
            while (await client.info("persistence"))["loading"]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


class RedisSink(Stream, SinkHarness):
    async def stored(self) -> list[StoredMessage]:
        return [_stored(fields) for fields in await self.entries(self.name)]

    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        return event(aggregate_id, {"text": "x" * CONFIG.max_message_size})


def _stored(fields: dict[bytes, bytes]) -> StoredMessage:
    data = fields.pop(b"data")
    headers = {name.decode(): value.decode() for name, value in fields.items()}
    content_type = headers.pop("content-type")
    attributes = {name.removeprefix("ce-"): value for name, value in headers.items()}
    attributes["datacontenttype"] = content_type
    message = RabbitMQMessage(headers=headers, content_type=content_type, body=data)
    return StoredMessage(attributes, data, from_binary(message, JSONFormat()))


class RedisGroup(Stream, SourceHarness):
    def source(self) -> RedisSource:
        return RedisSource(self.server.url, self.name, group="billing", config=CONFIG)

    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        async with self.publisher() as publisher:
            await publisher.publish_all(envelopes)

    async def send_garbage(self, body: bytes, /) -> None:
        fields: dict[Any, Any] = {"data": body}
        async with Redis.from_url(self.server.url) as client:
            await client.xadd(self.name, fields)

    async def dead_letters(self) -> list[DeadLetter]:
        return [
            DeadLetter(fields[b"data"], fields[b"dead-letter-reason"].decode())
            for fields in await self.entries(f"{self.name}.dlq")
        ]


class TestRedisPublisher(PublisherSuite):
    @pytest.fixture
    def sink(self, server: Server) -> SinkHarness:
        return RedisSink(server)


class TestRedisSource(SourceSuite):
    @pytest.fixture
    def source(self, server: Server) -> SourceHarness:
        return RedisGroup(server)

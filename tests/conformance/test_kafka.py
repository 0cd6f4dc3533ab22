"""Kafka keeps the promises of publishers and sources."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from outrider import EventEnvelope
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher, KafkaSource
from outrider.testing.conformance import (
    DeadLetter,
    PublisherSuite,
    SinkHarness,
    SourceHarness,
    SourceSuite,
    StoredMessage,
)
from outrider.testing.conformance.events import event
from outrider.testing.services import Services
from outrider.testing.services.servers.server import Server
from tests.support.brokers.kafka_topics import expel_members, records_in, send_raw, unique


@pytest.fixture
def server(services: Services) -> Server:
    """One of our own, for it is killed now and then."""
    return services.victim("kafka")


class _Restarts:
    def __init__(self, server: Server) -> None:
        self.server, self.topic = server, unique("conformance")

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)


class KafkaSink(_Restarts, SinkHarness):
    config = KafkaConfig(
        partitions=4, max_message_size=250_000, publish_timeout=timedelta(seconds=5)
    )

    def publisher(self) -> KafkaPublisher:
        return KafkaPublisher(self.server.url, self.topic, config=self.config)

    async def stored(self) -> list[StoredMessage]:
        return [
            StoredMessage(
                attributes={
                    name.removeprefix("ce_").replace("content-type", "datacontenttype"): value
                    for name, value in ((n, v.decode()) for n, v in record.headers)
                },
                data=record.value,
                # Without the key, of which the SDK makes one more attribute.
                official=from_binary(
                    KafkaMessage(dict(record.headers), None, record.value), JSONFormat()
                ),
            )
            for record in await records_in(self.server.url, self.topic)
        ]

    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        return event(aggregate_id, {"text": "x" * 250_000})


class KafkaGroup(_Restarts, SourceHarness):
    """With one partition, so that a second source has nothing to do."""

    config = KafkaConfig(partitions=1, takeover_after=timedelta(seconds=6))

    def source(self) -> KafkaSource:
        return KafkaSource(self.server.url, self.topic, group=self.topic, config=self.config)

    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        async with KafkaPublisher(self.server.url, self.topic, config=self.config) as publisher:
            await publisher.publish_all(envelopes)

    async def send_garbage(self, body: bytes, /) -> None:
        await send_raw(self.server.url, self.topic, body)

    async def crash(self, receive: int, acknowledge: int, adjust: Sequence[int] = (), /) -> None:
        await super().crash(receive, acknowledge, adjust)
        await expel_members(self.server.url, self.topic)

    async def dead_letters(self) -> list[DeadLetter]:
        return [
            DeadLetter(record.value, dict(record.headers)["dead-letter-reason"].decode())
            for record in await records_in(self.server.url, f"{self.topic}.dlq")
        ]


class TestKafkaPublisher(PublisherSuite):
    @pytest.fixture
    def sink(self, server: Server) -> SinkHarness:
        return KafkaSink(server)


class TestKafkaSource(SourceSuite):
    @pytest.fixture
    def source(self, server: Server) -> SourceHarness:
        return KafkaGroup(server)

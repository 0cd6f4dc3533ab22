"""NATS JetStream, beside the promises that every publisher and every source makes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from outrider import EventEnvelope
from outrider.brokers.nats import NatsPublisher, NatsSource
from outrider.testing.conformance import (
    DeadLetter,
    PublisherSuite,
    SinkHarness,
    SourceHarness,
    SourceSuite,
    StoredMessage,
)
from outrider.testing.conformance.events import envelopes_of, event, events
from outrider.testing.conformance.receiving import (
    acknowledge,
    receive_left,
    receive_some,
    receive_until,
    receiving,
)
from outrider.testing.conformance.timing import outage
from outrider.testing.services import Server, Services
from tests.support.brokers.nats_streams import jetstream, messages_in, start, unique

LIMIT: Final = 250_000


@pytest.fixture
def server(services: Services) -> Server:
    """One of our own, for it is killed now and then."""
    return services.victim("nats")


class LimitedLater(NatsPublisher):
    """Whose stream refuses large messages, and did not yet when the publisher opened."""

    async def open(self) -> None:
        await super().open()
        async with jetstream(self.url) as js:
            config = (await js.stream_info(self._stream)).config
            await js.update_stream(config, max_msg_size=LIMIT)

    url = ""


class Stream:
    """A stream of its own on a private server."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, unique()

    def publisher(self) -> NatsPublisher:
        publisher = LimitedLater(self.server.url, stream=self.name, subject=self.name)
        publisher.url = self.server.url
        return publisher

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def start(self) -> None:
        await start(self.server)


class NatsSink(Stream, SinkHarness):
    async def stored(self) -> list[StoredMessage]:
        return [
            StoredMessage(
                message.attributes,
                message.data,
                # The SDK has no binding for NATS; headers are those of HTTP.
                from_binary(HTTPMessage(message.headers, message.data), JSONFormat()),
            )
            for message in await messages_in(self.server.url, self.name)
        ]

    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        return event(aggregate_id, {"text": "x" * LIMIT})


class NatsGroup(Stream, SourceHarness):
    def source(self) -> NatsSource:
        return NatsSource(self.server.url, stream=self.name, group="billing")

    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        async with self.publisher() as publisher:
            await publisher.publish_all(envelopes)

    async def send_garbage(self, body: bytes, /) -> None:
        async with jetstream(self.server.url) as js:
            await js.publish(f"{self.name}.garbage", body)

    async def dead_letters(self) -> list[DeadLetter]:
        return [
            DeadLetter(message.data, unquote(message.headers["dead-letter-reason"]))
            for message in await messages_in(self.server.url, f"{self.name}_DLQ")
        ]


class TestNatsPublisher(PublisherSuite):
    @pytest.fixture
    def sink(self, server: Server) -> SinkHarness:
        return NatsSink(server)


class TestNatsSource(SourceSuite):
    @pytest.fixture
    async def source(self, server: Server) -> SourceHarness:
        group = NatsGroup(server)
        await group.send([])
        return group

    async def test_acknowledging_after_an_outage_is_harmless(self, source: SourceHarness) -> None:
        """The server writes acknowledgements down a moment after it has taken them, so that one
        of the last moment before it was killed may be lost, and its event comes again."""
        batch = events(5)

        async with receiving(source) as consumer:
            await source.send(batch[:4])
            held = await receive_some(consumer, 4)
            await consumer.acknowledge(held[0])
            async with outage(source):
                pass
            await source.send(batch[4:])
            await receive_until(consumer, batch[4])
            await acknowledge(consumer, held[1])

        again = envelopes_of(await receive_left(source, "a"))
        assert again in (batch, batch[1:], batch[2:])

"""Harnesses for MemoryBroker, and for publishers that call handlers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from outrider import BrokerUnavailable, EventEnvelope
from outrider.events.cloudevents import to_attributes
from outrider.ports import EventHandler, EventPublisher, EventSource
from outrider.testing.conformance import DeadLetter, SinkHarness, SourceHarness, StoredMessage
from outrider.testing.conformance.crash import consume
from outrider.testing.conformance.events import event
from outrider.testing.memory_broker import MemoryBroker, MemoryPublisher, MemorySource

REFUSED = "refused by request"


def stored_message(attributes: Mapping[str, str], data: bytes) -> StoredMessage:
    """The official SDK has no binding for memory; Kafka's is the plainest."""
    headers = {f"ce_{name}": value.encode() for name, value in attributes.items()}
    headers["content-type"] = headers.pop("ce_datacontenttype", b"")
    official = from_binary(KafkaMessage(headers=headers, key=None, value=data), JSONFormat())
    return StoredMessage(dict(attributes), data, official)


def refused_event(aggregate_id: str) -> EventEnvelope:
    return event(aggregate_id, {REFUSED: True})


def is_refused(envelope: EventEnvelope) -> str | None:
    return REFUSED if REFUSED in envelope.payload else None


class MemorySink(SinkHarness):
    def __init__(self, kind: Callable[[MemoryBroker], EventPublisher] = MemoryPublisher) -> None:
        self.broker = MemoryBroker(refuse=is_refused)
        self._kind = kind

    def publisher(self) -> EventPublisher:
        return self._kind(self.broker)

    async def stored(self) -> list[StoredMessage]:
        return [stored_message(each.attributes, each.data) for each in self.broker.messages]

    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        return refused_event(aggregate_id)

    async def stop(self) -> None:
        self.broker.stop()

    async def start(self) -> None:
        self.broker.start()


class MemoryGroup(SourceHarness):
    def __init__(self, kind: Callable[[MemoryBroker, str], EventSource] = MemorySource) -> None:
        self.broker = MemoryBroker(receive_wait=timedelta(milliseconds=50))
        self._kind = kind

    def source(self) -> EventSource:
        return self._kind(self.broker, "group")

    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        await self.broker.publisher().publish_all(envelopes)

    async def send_garbage(self, body: bytes, /) -> None:
        self.broker.put(body)

    async def dead_letters(self) -> list[DeadLetter]:
        return [DeadLetter(each.message.data, each.reason) for each in self.broker.dead_letters]

    async def stop(self) -> None:
        self.broker.stop()

    async def start(self) -> None:
        self.broker.start()

    async def crash(self, receive: int, acknowledge: int, adjust: Sequence[int] = (), /) -> None:
        """Drop the source without closing it, since a killed process would lose the broker, too."""
        await consume(self.source(), receive, acknowledge, adjust)
        gc.collect()


class HandlerSink(SinkHarness):
    """The sink is a handler that stores the events."""

    name = "keep"

    def __init__(
        self, kind: Callable[[Sequence[tuple[str, EventHandler]]], EventPublisher]
    ) -> None:
        self._kind = kind
        self._kept: list[EventEnvelope] = []
        self._running = True

    async def handle(self, envelope: EventEnvelope, /) -> None:
        if not self._running:
            raise BrokerUnavailable("what the handler needs is away")
        if reason := is_refused(envelope):
            raise ValueError(reason)
        self._kept.append(envelope)

    def publisher(self) -> EventPublisher:
        return self._kind([("order.placed", self)])

    async def stored(self) -> list[StoredMessage]:
        return [stored_message(to_attributes(each, "here"), each.data) for each in self._kept]

    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        return refused_event(aggregate_id)

    async def stop(self) -> None:
        self._running = False

    async def start(self) -> None:
        self._running = True

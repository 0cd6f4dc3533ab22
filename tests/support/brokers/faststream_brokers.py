"""Real brokers as FastStream sees them: somewhere to send events to, and subscribers to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from outrider import EventEnvelope
from outrider.events.cloudevents import to_attributes
from outrider.testing.services import Services
from tests.support.brokers.rabbitmq_queues import publishing, unique


class Place(ABC):
    """One queue, subject, stream or topic of its own."""

    def __init__(self, services: Services) -> None:
        self.services, self.name = services, unique("faststream").replace(".", "-")

    @abstractmethod
    def broker(self, middlewares: Sequence[Any]) -> Any:
        """Another connection; quiet, since the tests break things."""

    @abstractmethod
    def subscribe(self, broker: Any, handler: Callable[..., Any], **options: Any) -> Any:
        """The handler gets what is sent here; several connections share it."""

    @abstractmethod
    async def send(self, *envelopes: EventEnvelope) -> None:
        """As our publishers do."""

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """What must be there before anybody subscribes."""


class Rabbit(Place):
    def broker(self, middlewares: Sequence[Any]) -> RabbitBroker:
        return RabbitBroker(self.services.rabbitmq.url, middlewares=middlewares, logger=None)

    def subscribe(self, broker: Any, handler: Callable[..., Any], **options: Any) -> Any:
        queue = RabbitQueue(self.name, declare=False)
        policy = options.pop("ack_policy", AckPolicy.NACK_ON_ERROR)
        return broker.subscriber(queue, ack_policy=policy, **options)(handler)

    async def prepare(self) -> None:
        async with publishing(self.services.rabbitmq.url, self.name) as publisher:
            await publisher.open()

    async def send(self, *envelopes: EventEnvelope) -> None:
        async with publishing(self.services.rabbitmq.url, self.name) as publisher:
            for envelope in envelopes:
                await publisher.publish(envelope)


class Nats(Place):
    def broker(self, middlewares: Sequence[Any]) -> NatsBroker:
        return NatsBroker(self.services.nats.url, middlewares=middlewares, logger=None)

    @property
    def stream(self) -> JStream:
        return JStream(self.name, subjects=[f"{self.name}.*"])

    def subscribe(self, broker: Any, handler: Callable[..., Any], **options: Any) -> Any:
        policy = options.pop("ack_policy", AckPolicy.NACK_ON_ERROR)
        shared = {"stream": self.stream, "durable": "billing", "pull_sub": True}
        return broker.subscriber(f"{self.name}.*", ack_policy=policy, **shared, **options)(handler)

    async def send(self, *envelopes: EventEnvelope) -> None:
        async with self.broker([]) as broker:
            for envelope in envelopes:
                attributes = to_attributes(envelope, "test")
                headers = {"content-type": attributes.pop("datacontenttype")}
                headers |= {f"ce-{name}": quote(value) for name, value in attributes.items()}
                subject = f"{self.name}.placed"
                await broker.publish(envelope.data, subject, headers=headers, stream=self.name)


class Redis_(Place):  # noqa: N801 - the client has the name
    def broker(self, middlewares: Sequence[Any]) -> RedisBroker:
        return RedisBroker(self.services.redis.url, middlewares=middlewares, logger=None)

    def subscribe(self, broker: Any, handler: Callable[..., Any], **options: Any) -> Any:
        stream = StreamSub(self.name, group="billing", consumer=unique(), polling_interval=10)
        return broker.subscriber(stream=stream, **options)(handler)

    async def send(self, *envelopes: EventEnvelope) -> None:
        async with Redis.from_url(self.services.redis.url) as client:
            for envelope in envelopes:
                attributes = to_attributes(envelope, "test")
                fields = {"content-type": attributes.pop("datacontenttype"), "data": envelope.data}
                await client.xadd(self.name, {f"ce-{n}": v for n, v in attributes.items()} | fields)


class Kafka(Place):
    def broker(self, middlewares: Sequence[Any]) -> KafkaBroker:
        return KafkaBroker(self.services.kafka.address, middlewares=middlewares, logger=None)

    def subscribe(self, broker: Any, handler: Callable[..., Any], **options: Any) -> Any:
        policy = options.pop("ack_policy", AckPolicy.NACK_ON_ERROR)
        start = {"auto_offset_reset": "earliest", "group_id": self.name}
        return broker.subscriber(self.name, ack_policy=policy, **start, **options)(handler)

    async def send(self, *envelopes: EventEnvelope) -> None:
        broker = self.broker([])
        async with broker:
            for envelope in envelopes:
                attributes = to_attributes(envelope, "test")
                headers = {"content-type": attributes.pop("datacontenttype")}
                headers |= {f"ce_{name}": value for name, value in attributes.items()}
                await broker.publish(envelope.data, self.name, headers=headers, key=b"order")


PLACES = {"rabbitmq": Rabbit, "nats": Nats, "redis": Redis_, "kafka": Kafka}

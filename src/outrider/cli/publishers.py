"""The publisher that a URL asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.cli.processes import named
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.brokers.rabbitmq import Topology
    from outrider.ports import EventPublisher
    from outrider.settings.settings import Settings


def publisher_of(settings: Settings) -> EventPublisher:
    url = settings.values["to"]
    if url is None:
        raise ConfigurationError("no broker: give --to, OUTBOX_TO or RABBITMQ_URL")
    scheme = url.partition("://")[0]
    if scheme not in _PUBLISHERS:
        known = ", ".join(f"{name}://" for name in _PUBLISHERS)
        raise ConfigurationError(f"--to: {scheme}:// leads nowhere; there is {known}")
    return _PUBLISHERS[scheme](url, settings.values["destination"], settings)


def _rabbitmq(url: str, exchange: str, settings: Settings) -> EventPublisher:
    from outrider.brokers.rabbitmq import RabbitMQPublisher

    topology = _topology(settings.values["rabbitmq_topology"], exchange)
    return RabbitMQPublisher(url, exchange=exchange, topology=topology)


def _kafka(url: str, topic: str, _: Settings) -> EventPublisher:
    from outrider.brokers.kafka import KafkaPublisher

    return KafkaPublisher(url, topic=topic)


def _nats(url: str, stream: str, _: Settings) -> EventPublisher:
    from outrider.brokers.nats import NatsPublisher

    return NatsPublisher(url, stream=stream, subject=stream)


def _redis(url: str, stream: str, _: Settings) -> EventPublisher:
    from outrider.brokers.redis import RedisPublisher

    return RedisPublisher(url, stream=stream)


_PUBLISHERS: Final[dict[str, Callable[[str, str, Settings], EventPublisher]]] = {
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "kafka": _kafka,
    "nats": _nats,
    "tls": _nats,
    "redis": _redis,
    "rediss": _redis,
}


def _topology(name: str | None, exchange: str) -> Topology | None:
    from outrider.brokers.rabbitmq import Topology, messaging_topology

    if name is None:
        return None
    if name == "messaging":
        return messaging_topology(exchange)
    found = named(name)
    if not isinstance(found, Topology):
        raise ConfigurationError(f"{name} is a {type(found).__name__}, not a Topology")
    return found

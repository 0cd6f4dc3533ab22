"""The publisher for the broker that a URL names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.cli.processes import load_object
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.brokers.rabbitmq import Topology
    from outrider.ports import EventPublisher
    from outrider.settings.process import RelayProcessConfig


def make_publisher(process: RelayProcessConfig) -> EventPublisher:
    if process.to is None:
        raise ConfigurationError("no broker: give --to, OUTBOX_TO or RABBITMQ_URL")
    scheme = process.to.partition("://")[0]
    if scheme not in _PUBLISHERS:
        known = ", ".join(f"{name}://" for name in _PUBLISHERS)
        # The URL is not repeated: without a scheme its beginning may be a user and a password.
        raise ConfigurationError(f"--to: begin it with one of {known}")
    return _PUBLISHERS[scheme](process.to, process)


def _rabbitmq(url: str, process: RelayProcessConfig) -> EventPublisher:
    from outrider.brokers.rabbitmq import RabbitMQPublisher

    topology = _topology(process.rabbitmq_topology)
    return RabbitMQPublisher(url, exchange=process.destination, topology=topology)


def _kafka(url: str, process: RelayProcessConfig) -> EventPublisher:
    from outrider.brokers.kafka import KafkaPublisher

    return KafkaPublisher(url, topic=process.destination)


def _nats(url: str, process: RelayProcessConfig) -> EventPublisher:
    from outrider.brokers.nats import NatsPublisher

    return NatsPublisher(url, stream=process.destination, subject=process.destination)


def _redis(url: str, process: RelayProcessConfig) -> EventPublisher:
    from outrider.brokers.redis import RedisPublisher

    return RedisPublisher(url, stream=process.destination)


_PUBLISHERS: Final[dict[str, Callable[[str, RelayProcessConfig], EventPublisher]]] = {
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "kafka": _kafka,
    "nats": _nats,
    "tls": _nats,
    "redis": _redis,
    "rediss": _redis,
}


def _topology(name: str | None) -> Topology | None:
    from outrider.brokers.rabbitmq import Topology

    if name is None:
        return None
    try:
        found = load_object(name)
    except ConfigurationError as problem:
        raise ConfigurationError(f"--rabbitmq-topology: {problem}") from None
    if not isinstance(found, Topology):
        kind = type(found).__name__
        raise ConfigurationError(f"--rabbitmq-topology: {name} is a {kind}, not a Topology")
    return found

"""RabbitMQ over AMQP 0-9-1: persistent messages with confirms, and queues read in order.

Accepted means that every queue the event was routed to has stored it. An event that no queue takes
is refused, not lost. What it cannot do: tell whether an event in flight was stored when the
connection broke, or an acknowledgement was heard; such an event may arrive twice.
"""

from __future__ import annotations

from outrider.errors import ConfigurationError

try:
    import pamqp as _client  # noqa: F401
except ImportError as missing:
    raise ConfigurationError("pamqp is missing: pip install 'outrider[rabbitmq]'") from missing

from outrider.brokers.rabbitmq.config import RabbitMQConfig, RabbitMQSourceConfig
from outrider.brokers.rabbitmq.publisher import RabbitMQPublisher
from outrider.brokers.rabbitmq.source import RabbitMQSource
from outrider.brokers.rabbitmq.topology import (
    Binding,
    Exchange,
    Queue,
    Topology,
    messaging_topology,
)

__all__ = [
    "Binding",
    "Exchange",
    "Queue",
    "RabbitMQConfig",
    "RabbitMQPublisher",
    "RabbitMQSource",
    "RabbitMQSourceConfig",
    "Topology",
    "messaging_topology",
]

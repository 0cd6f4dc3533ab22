"""RabbitMQ over AMQP 0-9-1: persistent messages with confirms, and queues read in order.

Accepted means that every queue the event was routed to has stored it. An event that no queue takes
is refused, not lost. What it cannot do: when the connection breaks, tell whether an event in flight
was stored or an acknowledgement arrived. Such an event may arrive twice.
"""

from __future__ import annotations

from outrider.errors import ConfigurationError

try:
    import pamqp as _client  # noqa: F401
except ImportError as missing:
    raise ConfigurationError("pamqp is missing: pip install 'outrider[rabbitmq]'") from missing

from outrider.brokers.rabbitmq.config import RabbitMQConfig
from outrider.brokers.rabbitmq.publisher import RabbitMQPublisher
from outrider.brokers.rabbitmq.source import RabbitMQSource
from outrider.brokers.rabbitmq.topology import Binding, Exchange, Queue, Topology

__all__ = [
    "Binding",
    "Exchange",
    "Queue",
    "RabbitMQConfig",
    "RabbitMQPublisher",
    "RabbitMQSource",
    "Topology",
]

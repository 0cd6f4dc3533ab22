"""NATS JetStream, through nats-py: a stream that stores events, and durable consumers with acks.

Accepted means that the stream has stored the event, on the majority of its replicas. A repeated
event is stored once, within the duplicate window of the stream. One source of a group receives at
a time, from the oldest unacknowledged event on. Limits: a stream drops events that exceed its own
limits; and a group whose sources share the work has no order.
"""

from __future__ import annotations

from outrider.errors import ConfigurationError

try:
    import nats as _client  # noqa: F401
except ImportError as missing:
    raise ConfigurationError("nats-py is missing: pip install 'outrider[nats]'") from missing

from outrider.brokers.nats.config import NatsConfig
from outrider.brokers.nats.publisher import NatsPublisher
from outrider.brokers.nats.source import NatsSource

__all__ = ["NatsConfig", "NatsPublisher", "NatsSource"]

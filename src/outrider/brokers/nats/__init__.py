"""NATS JetStream, through nats-py: a stream that keeps events, and durable consumers with acks.

Accepted means that the stream has stored the event, on most of its replicas. A repeated event is
stored once, within the stream's duplicate window. A group is received by one source at a time,
which begins with the oldest event that was not acknowledged. What it cannot do: keep what the
stream's own limits throw away; order a group whose sources share the work.
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

"""The transactional outbox: events recorded with your data, delivered in order, effective once."""

from outrider.brokers.memory import InMemoryEventBus
from outrider.bus import EventBus
from outrider.codec import deserialize_event, serialize_event, upcasts
from outrider.envelope import EventEnvelope, EventId, EventMetadata
from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DecodeError,
    InvalidEvent,
    LeaseLost,
    OutriderError,
    PublishFailed,
    PublishRefused,
)
from outrider.events import DomainEvent
from outrider.handlers import Handlers, handles
from outrider.ports import Accepted, EventHandler, EventPublisher, EventSubscriber, Refused, Unknown
from outrider.strict_json import Limits

__all__ = [
    "Accepted",
    "BrokerUnavailable",
    "ConfigurationError",
    "DecodeError",
    "DomainEvent",
    "EventBus",
    "EventEnvelope",
    "EventHandler",
    "EventId",
    "EventMetadata",
    "EventPublisher",
    "EventSubscriber",
    "Handlers",
    "InMemoryEventBus",
    "InvalidEvent",
    "LeaseLost",
    "Limits",
    "OutriderError",
    "PublishFailed",
    "PublishRefused",
    "Refused",
    "Unknown",
    "deserialize_event",
    "handles",
    "serialize_event",
    "upcasts",
]

"""The transactional outbox: events recorded with your data, delivered in order, effective once."""

from outrider.brokers.in_process import InProcessPublisher
from outrider.brokers.memory import InMemoryEventBus
from outrider.bus import EventBus
from outrider.codec import deserialize_event, serialize_event, upcasts
from outrider.consumer import ConsumerConfig, EventConsumer
from outrider.context import event_context
from outrider.envelope import EventEnvelope, EventId, EventMetadata
from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    DecodeError,
    InvalidEvent,
    LeaseLost,
    OutriderError,
    PublishFailed,
    PublishRefused,
)
from outrider.events import DomainEvent
from outrider.handlers import Handlers, handles
from outrider.inbox import IdempotentHandler
from outrider.ports import EventHandler, EventPublisher, EventSubscriber, ProcessedEventStore
from outrider.relay import OutboxRelay
from outrider.relay_state import RelayConfig
from outrider.retry import ExponentialRetry, SteppedRetry
from outrider.sql.aggregates import RaisesEvents
from outrider.sql.engines import open_engine
from outrider.sql.inbox import SqlInbox
from outrider.sql.names import OutboxNames
from outrider.sql.outbox import Outbox, OutboxEventDispatcher
from outrider.sql.repository import OutboxRepository
from outrider.sql.schema import create_all
from outrider.sql.store import SqlOutbox
from outrider.sql.tables import OutboxRecord, OutboxTables, map_outbox
from outrider.strict_json import Limits

__all__ = [
    "BrokerUnavailable",
    "ConfigurationError",
    "ConsumerConfig",
    "DatabaseUnavailable",
    "DecodeError",
    "DomainEvent",
    "EventBus",
    "EventConsumer",
    "EventEnvelope",
    "EventHandler",
    "EventId",
    "EventMetadata",
    "EventPublisher",
    "EventSubscriber",
    "ExponentialRetry",
    "Handlers",
    "IdempotentHandler",
    "InMemoryEventBus",
    "InProcessPublisher",
    "InvalidEvent",
    "LeaseLost",
    "Limits",
    "Outbox",
    "OutboxEventDispatcher",
    "OutboxNames",
    "OutboxRecord",
    "OutboxRelay",
    "OutboxRepository",
    "OutboxTables",
    "OutriderError",
    "ProcessedEventStore",
    "PublishFailed",
    "PublishRefused",
    "RaisesEvents",
    "RelayConfig",
    "SqlInbox",
    "SqlOutbox",
    "SteppedRetry",
    "create_all",
    "deserialize_event",
    "event_context",
    "handles",
    "map_outbox",
    "open_engine",
    "serialize_event",
    "upcasts",
]

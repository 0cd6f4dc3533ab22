"""The transactional outbox: events recorded with your data, delivered in order, effective once."""

from outrider.brokers.event_bus import PublishSubscribeBus
from outrider.brokers.in_process import InProcessPublisher
from outrider.brokers.memory import InMemoryEventBus
from outrider.consumer.consumer import ConsumerConfig, EventConsumer
from outrider.consumer.handlers import Handlers, handles
from outrider.consumer.inbox import IdempotentHandler, InboxCleanup
from outrider.consumer.sql_inbox import SqlInbox, SqlProcessedEvents
from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    DecodeError,
    InvalidEvent,
    OutriderError,
)
from outrider.events.bus import EventBus
from outrider.events.codec import deserialize_event, serialize_event, upcasts
from outrider.events.context import event_context
from outrider.events.envelope import EventEnvelope, EventMetadata
from outrider.events.event import DomainEvent
from outrider.events.ids import EventId
from outrider.events.strict_json import Limits
from outrider.lifecycle import BackgroundService
from outrider.ports import EventHandler, EventPublisher, EventSubscriber, ProcessedEventStore
from outrider.recording.aggregates import RaisesEvents
from outrider.recording.outbox import Outbox, OutboxEventDispatcher
from outrider.relay.config import RelayConfig
from outrider.relay.relay import OutboxRelay
from outrider.relay.retry import ExponentialRetry, SteppedRetry
from outrider.settings.settings import read_settings
from outrider.store.engines import open_engine
from outrider.store.schema.migrate import create_all
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxRecord, OutboxTables, UtcDateTime, map_outbox
from outrider.store.sql_store import SqlOutboxStore

__all__ = [
    "BackgroundService",
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
    "InboxCleanup",
    "InvalidEvent",
    "Limits",
    "Outbox",
    "OutboxEventDispatcher",
    "OutboxNames",
    "OutboxRecord",
    "OutboxRelay",
    "OutboxTables",
    "OutriderError",
    "ProcessedEventStore",
    "PublishSubscribeBus",
    "RaisesEvents",
    "RelayConfig",
    "SqlInbox",
    "SqlOutboxStore",
    "SqlProcessedEvents",
    "SteppedRetry",
    "UtcDateTime",
    "create_all",
    "deserialize_event",
    "event_context",
    "handles",
    "map_outbox",
    "open_engine",
    "read_settings",
    "serialize_event",
    "upcasts",
]

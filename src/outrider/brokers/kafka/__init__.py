"""Kafka, through aiokafka: an idempotent producer, and consumer groups with manual commits.

Accepted means that all in-sync replicas have the event. All events of one aggregate have the same
key, so they are in the same partition and keep their order. Limits: raising the number of
partitions moves keys to other partitions, which breaks the order at that moment.
"""

from __future__ import annotations

from outrider.errors import ConfigurationError

try:
    import aiokafka as _client  # type: ignore[import-untyped]  # noqa: F401
except ImportError as missing:
    raise ConfigurationError("aiokafka is missing: pip install 'outrider[kafka]'") from missing

from outrider.brokers.kafka.config import KafkaConfig
from outrider.brokers.kafka.publisher import KafkaPublisher
from outrider.brokers.kafka.source import KafkaSource

__all__ = ["KafkaConfig", "KafkaPublisher", "KafkaSource"]

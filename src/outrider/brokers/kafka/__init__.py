"""Kafka, through aiokafka: an idempotent producer, and consumer groups with commits by hand.

Accepted means that all in-sync replicas have the event. Events of one aggregate have the same key,
so they share a partition and keep their order in it. What it cannot do: keep that order when
somebody raises the number of partitions, for keys move then; nor count how often a message was
handed out.
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

"""Delivery without a broker: a handler in this process stands in for the consumers."""

import logging
from collections import deque

from outrider import EventEnvelope, InProcessPublisher

log = logging.getLogger(__name__)


class MessageProcessor:
    """Notes what would be processed; the payload stays out of the log."""

    name = "message_processor"

    def __init__(self) -> None:
        self.processed: deque[dict[str, str]] = deque(maxlen=100)

    async def handle(self, envelope: EventEnvelope, /) -> None:
        log.info("processed %s of %s", envelope.event_type, envelope.aggregate_id)
        fact = {
            "event_id": str(envelope.event_id),
            "event_type": envelope.event_type,
            "aggregate_id": envelope.aggregate_id,
        }
        self.processed.append(fact)

    def publisher(self) -> InProcessPublisher:
        """The same patterns as RabbitMQ's queues are bound by."""
        return InProcessPublisher([("group_message.*", self), ("scheduled_message.*", self)])

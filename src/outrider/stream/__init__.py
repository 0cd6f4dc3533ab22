"""The live stream: events reach browsers as server-sent events, and every client can resume.

A relay with a StreamPublisher serves a sink of its own, by default "stream". Being settled is what
delivers an event: it gets a number then, in the order of the commits. A StreamManager in each web
process follows these numbers and serves that process's clients, who resume by the last number
they saw. What it cannot do: bring back what was forgotten; clients are told of the gap.
"""

from outrider.stream.client import Since, Stream, Wanted
from outrider.stream.config import StreamConfig
from outrider.stream.delivered import DeliveredEvent, DeliveredEvents, SqlDeliveredEvents
from outrider.stream.filters import StreamFilter
from outrider.stream.manager import StreamManager
from outrider.stream.publisher import StreamPublisher

__all__ = [
    "DeliveredEvent",
    "DeliveredEvents",
    "Since",
    "SqlDeliveredEvents",
    "Stream",
    "StreamConfig",
    "StreamFilter",
    "StreamManager",
    "StreamPublisher",
    "Wanted",
]

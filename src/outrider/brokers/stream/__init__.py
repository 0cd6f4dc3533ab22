"""The live stream: events reach browsers as server-sent events, and every client can resume.

A relay with a StreamPublisher serves a sink of its own, by default "stream". Being settled is what
delivers an event: it gets a number then, in the order of the commits. A StreamManager in each web
process follows these numbers and serves that process's clients, who resume by the last number
they saw. What it cannot do: bring back what was forgotten; clients are told of the gap.
"""

from outrider.brokers.stream.client import Since, Stream, Wanted
from outrider.brokers.stream.config import StreamConfig
from outrider.brokers.stream.filters import StreamFilter
from outrider.brokers.stream.manager import StreamManager
from outrider.brokers.stream.publisher import StreamPublisher

__all__ = [
    "Since",
    "Stream",
    "StreamConfig",
    "StreamFilter",
    "StreamManager",
    "StreamPublisher",
    "Wanted",
]

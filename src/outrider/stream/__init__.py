"""The live stream: sends events to browsers as server-sent events, and lets clients resume.

A relay with a StreamPublisher serves a sink; DeliveredEvents of the same sink read it. When the
relay settles an event, it gets its delivery number, in the order of the commits. A StreamManager in
each web process reads events by number and sends them to the clients of that process. A client
resumes after the last number it received. Deleted events cannot be sent again: the client gets a
message about the gap.
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

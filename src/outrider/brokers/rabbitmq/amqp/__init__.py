"""An AMQP 0-9-1 client with what publisher and source need; the only door to this package."""

from pamqp import commands as methods
from pamqp.base import Frame as Method
from pamqp.common import FieldValue

from outrider.brokers.rabbitmq.amqp.content import Message
from outrider.brokers.rabbitmq.amqp.errors import ClosedByBroker, ConnectionLost, Unsendable
from outrider.brokers.rabbitmq.amqp.frames import (
    CHANNEL,
    ack_frame,
    fits_in_frame,
    long_string,
    marshal_method,
    message_frames,
    publish_frame,
    short_bytes,
    short_string,
)
from outrider.brokers.rabbitmq.amqp.login import connect
from outrider.brokers.rabbitmq.amqp.properties import (
    CONTENT_TYPE,
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    PERSISTENT,
    TIMESTAMP,
    USER_ID,
    event_header,
    read_properties,
    read_table,
    string_header,
    string_value,
    timestamp_as_text,
    value_as_text,
    write_header,
    write_table,
)
from outrider.brokers.rabbitmq.amqp.wire import NACKED, Wire

__all__ = [
    "CHANNEL",
    "CONTENT_TYPE",
    "DELIVERY_MODE",
    "EXPIRATION",
    "HEADERS",
    "MESSAGE_ID",
    "NACKED",
    "PERSISTENT",
    "TIMESTAMP",
    "USER_ID",
    "ClosedByBroker",
    "ConnectionLost",
    "FieldValue",
    "Message",
    "Method",
    "Unsendable",
    "Wire",
    "ack_frame",
    "connect",
    "event_header",
    "fits_in_frame",
    "long_string",
    "marshal_method",
    "message_frames",
    "methods",
    "publish_frame",
    "read_properties",
    "read_table",
    "short_bytes",
    "short_string",
    "string_header",
    "string_value",
    "timestamp_as_text",
    "value_as_text",
    "write_header",
    "write_table",
]

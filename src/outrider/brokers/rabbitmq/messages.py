"""An envelope as the frames that publish it, and a delivered message as the event in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from outrider.brokers.rabbitmq.amqp import (
    CONTENT_TYPE,
    HEADERS,
    MESSAGE_ID,
    TIMESTAMP,
    Message,
    Unsendable,
    event_header,
    long_string,
    message_frames,
    publish_frame,
    read_properties,
    read_table,
    short_string,
    string_header,
    timestamp_as_text,
    value_as_text,
)
from outrider.errors import DecodeError
from outrider.events.cloudevents import CONTENT_TYPE as JSON
from outrider.events.cloudevents import (
    STRUCTURED_CONTENT_TYPE,
    extensions,
    from_attributes,
    from_structured,
    to_attributes,
)
from outrider.events.ids import source_of
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.events.envelope import EventEnvelope

    _Key = tuple[str, str, int, str]

_MAX_KINDS: Final = 1024
_STRUCTURED: Final = STRUCTURED_CONTENT_TYPE.encode()
_PREFIX: Final = b"ce-"

# Attributes that all events of one type, version and aggregate type have in common.
_OF_THE_KIND: Final = frozenset({"specversion", "source", "type", "aggregatetype", "eventversion"})

# Headers with a value of their own for every event.
_ID, _SUBJECT, _TIME = string_header("ce-id"), string_header("ce-subject"), string_header("ce-time")
_AGGREGATE_ID, _CREATED_AT = string_header("aggregate_id"), string_header("created_at")

# The headers of a hand-made outbox, and the attributes that they stand for.
_PLAIN: Final = {
    b"event_type": "type",
    b"aggregate_type": "aggregatetype",
    b"aggregate_id": "subject",
    b"created_at": "time",
}


class _Kind(NamedTuple):
    """What all events of one type, version and aggregate type have in common, marshalled once."""

    publish: bytes
    headers: bytes
    type: bytes


class MessageWriter:
    """Writes messages for one exchange."""

    def __init__(self, exchange: str, cloudevents_source: str, *, mandatory: bool = True) -> None:
        self._exchange = short_string(exchange, "exchange")
        self._source, self._mandatory = cloudevents_source, mandatory
        self._content_type = short_string(JSON, "content type")
        self._kinds: dict[_Key, _Kind] = {}

    def write(self, envelope: EventEnvelope, frame_max: int) -> bytes:
        """The method, header and body frames; raises Unsendable if that is impossible."""
        source = source_of(envelope.event_id, self._source)
        key = (envelope.event_type, envelope.aggregate_type, envelope.event_version, source)
        try:
            kind = self._kinds.get(key) or self._new_kind(key, envelope)
            header = self._header(envelope, kind)
        except UnicodeEncodeError:
            raise Unsendable("a header is no valid Unicode text") from None
        return message_frames(kind.publish, header, envelope.data, frame_max)

    def _header(self, envelope: EventEnvelope, kind: _Kind) -> bytes:
        event_id = str(envelope.event_id)
        subject = long_string(envelope.aggregate_id)
        time = long_string(envelope.occurred_at.isoformat())
        own = (_ID, long_string(event_id), _SUBJECT, subject, _TIME, time)
        table = b"".join((kind.headers, *own, _AGGREGATE_ID, subject, _CREATED_AT, time))
        for name, value in extensions(envelope.metadata).items():
            table += string_header("ce-" + name) + long_string(value)
        # The property has no sign and whole seconds; `ce-time` is exact.
        seconds = max(0, int(envelope.occurred_at.timestamp()))
        message_id = short_string(event_id, "event id")
        size = len(envelope.data)
        return event_header(self._content_type, table, message_id, seconds, kind.type, size)

    def _new_kind(self, key: _Key, envelope: EventEnvelope) -> _Kind:
        event_type = short_string(envelope.event_type, "event type")
        attributes = to_attributes(envelope, self._source)
        headers = {"ce-" + name: attributes[name] for name in sorted(_OF_THE_KIND)}
        headers |= {"event_type": envelope.event_type, "aggregate_type": envelope.aggregate_type}
        kind = _Kind(
            publish=publish_frame(self._exchange, event_type, mandatory=self._mandatory),
            headers=b"".join(string_header(n) + long_string(v) for n, v in headers.items()),
            type=event_type,
        )
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[key] = kind
        return kind


def to_delivery(message: Message) -> Delivery:
    """Never raises: `problem` says why a message is no event, without any of its values."""
    delivery = Delivery(None, message=message)
    try:
        properties = read_properties(message.header)
        headers = read_table(properties.get(HEADERS, b""))
        delivery.envelope = _envelope(properties, headers, message.body)
    except DecodeError as error:
        delivery.problem = str(error)
    except Exception as error:  # noqa: BLE001 - anybody may have sent anything
        delivery.problem = f"it cannot be read ({type(error).__name__})"
    return delivery


def _envelope(
    properties: Mapping[int, bytes], headers: Mapping[bytes, bytes], body: bytes
) -> EventEnvelope:
    if properties.get(CONTENT_TYPE, b"")[1:].startswith(_STRUCTURED):
        return from_structured(body)
    attributes = {
        name[len(_PREFIX) :].decode(): text
        for name, value in headers.items()
        if name.startswith(_PREFIX) and (text := value_as_text(value)) is not None
    }
    return from_attributes(attributes or _plain_attributes(properties, headers), body)


def _plain_attributes(
    properties: Mapping[int, bytes], headers: Mapping[bytes, bytes]
) -> dict[str, str]:
    attributes = {
        attribute: text
        for name, attribute in _PLAIN.items()
        if name in headers and (text := value_as_text(headers[name])) is not None
    }
    if not attributes:
        raise DecodeError("neither ce- headers nor event_type, aggregate_type, aggregate_id")
    if TIMESTAMP in properties and "time" not in attributes:
        attributes["time"] = timestamp_as_text(properties[TIMESTAMP])
    if "time" in attributes:
        attributes["time"] = _in_utc(attributes["time"])
    message_id = properties.get(MESSAGE_ID, b"\0")[1:].decode()
    return {"specversion": "1.0", "id": message_id, **attributes}


def _in_utc(time: str) -> str:
    """A hand-made outbox often takes its times from a clock without a time zone."""
    found = datetime.fromisoformat(time)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()

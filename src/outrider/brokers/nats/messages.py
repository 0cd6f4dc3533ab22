"""Events as NATS messages with CloudEvents headers, marshalled by hand for speed, and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from outrider.brokers.nats.config import is_subject
from outrider.errors import DecodeError
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.msg import Msg

    from outrider.events.envelope import EventEnvelope

    _Key = tuple[str, str, int, str]

MESSAGE_ID: Final = "Nats-Msg-Id"

_PREFIX: Final = "ce-"
_CONTENT_TYPE: Final = {"datacontenttype": "content-type"}
_SHARED_ATTRIBUTES: Final = frozenset(
    {"specversion", "source", "type", "aggregatetype", "eventversion", "datacontenttype"}
)
"""The same for all events of one type, version and aggregate type."""
# CloudEvents allows these characters in a header: printable ASCII but for space, quote, percent.
_PLAIN: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(filter(_PLAIN.fullmatch, map(chr, range(0x21, 0x7F))))
_MAX_CACHED_PREFIXES: Final = 1024


class Unsendable(Exception):
    """This event does not fit into a message for this stream; the text quotes no value."""


class _MessagePrefix(NamedTuple):
    """What all events of one type, version and aggregate type have in common."""

    subject: str
    headers: str


class MessageWriter:
    """Writes messages to subjects that begin with `prefix`."""

    def __init__(self, prefix: str, cloudevents_source: str, sink: str) -> None:
        self._prefix, self._cloudevents_source, self._sink = prefix, cloudevents_source, sink
        self._cache: dict[_Key, _MessagePrefix] = {}

    def subject(self, envelope: EventEnvelope) -> str:
        return f"{self._prefix}.{envelope.event_type}"

    def write(self, envelope: EventEnvelope, reply: str, max_size: int) -> bytes:
        """The whole HPUB command; raises Unsendable if that is impossible."""
        try:
            common, headers = self._marshal(envelope)
        except UnicodeEncodeError:
            raise Unsendable("a header is no valid Unicode text") from None
        size = len(headers) + len(envelope.data)
        if size > max_size:
            raise Unsendable(f"it has {size} bytes with its headers, {max_size} are allowed")
        start = f"HPUB {common.subject} {reply} {len(headers)} {size}\r\n{headers}"
        return b"%b%b\r\n" % (start.encode(), envelope.data)

    def _marshal(self, envelope: EventEnvelope) -> tuple[_MessagePrefix, str]:
        attributes = to_attributes(envelope, self._cloudevents_source)
        source = attributes["source"]
        key = (envelope.event_type, envelope.aggregate_type, envelope.event_version, source)
        common = self._cache.get(key) or self._cached(key, envelope, attributes)
        own = [
            _line(name, value)
            for name, value in attributes.items()
            if name not in _SHARED_ATTRIBUTES
        ]
        # As a UUID, since the ids of two other producers may have the same text.
        message_id = f"{MESSAGE_ID}: {UUID.__str__(envelope.event_id)}:{self._sink}"
        return common, f"{common.headers}{''.join(own)}{message_id}\r\n\r\n"

    def _cached(
        self, key: _Key, envelope: EventEnvelope, attributes: Mapping[str, str]
    ) -> _MessagePrefix:
        subject = self.subject(envelope)
        if not is_subject(subject):
            raise Unsendable("its type is no part of a subject: an empty word, a space, * or >")
        lines = (_line(name, attributes[name]) for name in sorted(_SHARED_ATTRIBUTES))
        if len(self._cache) >= _MAX_CACHED_PREFIXES:
            self._cache.clear()
        common = self._cache[key] = _MessagePrefix(subject, f"NATS/1.0\r\n{''.join(lines)}")
        return common


def to_delivery(message: Msg) -> Delivery:
    """A message that is no event has a problem, which quotes no value of the message."""
    delivery = Delivery(None, message=message)
    try:
        delivery.envelope = to_envelope(message.headers, message.data)
    except DecodeError as error:
        delivery.problem = str(error)
    return delivery


def to_envelope(headers: Mapping[str, str] | None, data: bytes) -> EventEnvelope:
    attributes = {
        name.lower().removeprefix(_PREFIX): unquote(value)
        for name, value in (headers or {}).items()
        if name.lower().startswith(_PREFIX)
    }
    return from_attributes(attributes, data)


def encode(text: str) -> str:
    """Percent-encodes everything but plain ASCII; raises UnicodeEncodeError for surrogates."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE)


def size_of(headers: Mapping[str, str], data: bytes) -> int:
    """The size that the server compares with its limits: first and last line, headers, data."""
    return 12 + sum(len(n) + len(v) + 4 for n, v in headers.items()) + len(data)


def _line(attribute: str, value: str) -> str:
    return f"{_CONTENT_TYPE.get(attribute) or _PREFIX + attribute}: {encode(value)}\r\n"

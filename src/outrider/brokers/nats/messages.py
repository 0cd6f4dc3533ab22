"""An envelope as a NATS message, marshalled by hand because it is the hot path, and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote

from outrider.brokers.nats.config import is_subject
from outrider.events.cloudevents import from_attributes, to_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.events.envelope import EventEnvelope

MESSAGE_ID: Final = "Nats-Msg-Id"

_PREFIX: Final = "ce-"
_CONTENT_TYPE: Final = {"datacontenttype": "content-type"}
# Attributes that all events of one type, version and aggregate type have in common.
_OF_THE_KIND: Final = frozenset(
    {"specversion", "source", "type", "aggregatetype", "eventversion", "datacontenttype"}
)
# What CloudEvents lets through in a header: printable ASCII but for space, quote and percent.
_PLAIN: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(filter(_PLAIN.fullmatch, map(chr, range(0x21, 0x7F))))
_MAX_KINDS: Final = 1024


class Unsendable(Exception):
    """This event does not fit into a message for this stream."""


class _Kind(NamedTuple):
    """What all events of one type, version and aggregate type have in common."""

    subject: str
    headers: str


class MessageWriter:
    """Writes messages to subjects with one prefix."""

    def __init__(self, prefix: str, source: str, sink: str) -> None:
        self._prefix, self._source, self._sink = prefix, source, sink
        self._kinds: dict[tuple[str, str, int], _Kind] = {}

    def subject(self, envelope: EventEnvelope) -> str:
        return f"{self._prefix}.{envelope.event_type}"

    def write(self, envelope: EventEnvelope, reply: str, max_size: int) -> bytes:
        """The whole command; raises Unsendable if that is impossible."""
        key = (envelope.event_type, envelope.aggregate_type, envelope.event_version)
        attributes = to_attributes(envelope, self._source)
        kind = self._kinds.get(key) or self._learn(key, envelope, attributes)
        own = [_line(name, value) for name, value in attributes.items() if name not in _OF_THE_KIND]
        headers = (
            f"{kind.headers}{''.join(own)}{MESSAGE_ID}: {attributes['id']}:{self._sink}\r\n\r\n"
        )
        size = len(headers) + len(envelope.data)
        if size > max_size:
            raise Unsendable(f"it has {size} bytes with its headers, {max_size} are allowed")
        start = f"HPUB {kind.subject} {reply} {len(headers)} {size}\r\n{headers}"
        return b"%b%b\r\n" % (start.encode(), envelope.data)

    def _learn(
        self, key: tuple[str, str, int], envelope: EventEnvelope, attributes: Mapping[str, str]
    ) -> _Kind:
        subject = self.subject(envelope)
        if not is_subject(subject):
            raise Unsendable("its type is no part of a subject: an empty word, a space, * or >")
        lines = (_line(name, attributes[name]) for name in sorted(_OF_THE_KIND))
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds[key] = _Kind(subject, f"NATS/1.0\r\n{''.join(lines)}")
        return kind


def from_message(headers: Mapping[str, str] | None, data: bytes) -> EventEnvelope:
    attributes = {
        name.lower().removeprefix(_PREFIX): unquote(value)
        for name, value in (headers or {}).items()
        if name.lower().startswith(_PREFIX)
    }
    return from_attributes(attributes, data)


def encode(text: str) -> str:
    """Percent-encoded to ASCII where needed."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE)


def size_of(headers: Mapping[str, str], data: bytes) -> int:
    """What the server counts against its limits: two lines around the headers, and the rest."""
    return 12 + sum(len(n) + len(v) + 4 for n, v in headers.items()) + len(data)


def _line(attribute: str, value: str) -> str:
    return f"{_CONTENT_TYPE.get(attribute) or _PREFIX + attribute}: {encode(value)}\r\n"

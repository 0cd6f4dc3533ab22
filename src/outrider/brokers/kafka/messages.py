"""Events as Kafka records with CloudEvents headers, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.errors import DecodeError
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokafka import ConsumerRecord  # type: ignore[import-untyped]

    from outrider.events.envelope import EventEnvelope

    Headers = list[tuple[str, bytes]]

_PREFIX: Final = "ce_"
_CONTENT_TYPE: Final = "content-type"


class _HeaderNames(dict[str, str]):
    """The header name of each CloudEvents attribute, built once per attribute."""

    def __missing__(self, attribute: str) -> str:
        self[attribute] = name = _PREFIX + attribute
        return name


_header_names: Final = _HeaderNames({"datacontenttype": _CONTENT_TYPE})


def to_headers(envelope: EventEnvelope, cloudevents_source: str) -> Headers:
    """Raises UnicodeEncodeError if an attribute is no valid Unicode text."""
    return [
        (_header_names[name], value.encode())
        for name, value in to_attributes(envelope, cloudevents_source).items()
    ]


def to_delivery(record: ConsumerRecord) -> Delivery:
    """A record that is no event has a problem, which quotes no value of the record."""
    try:
        envelope = _to_envelope(record.headers, record.value or b"")
    except DecodeError as error:
        return Delivery(None, str(error), message=record)
    except UnicodeDecodeError:
        return Delivery(None, "a header is no valid Unicode text", message=record)
    return Delivery(envelope, message=record)


def _to_envelope(headers: Iterable[tuple[str, bytes | None]], value: bytes) -> EventEnvelope:
    attributes = {
        name.removeprefix(_PREFIX): text.decode()
        for name, text in headers
        if name.startswith(_PREFIX) and text is not None
    }
    return from_attributes(attributes, value)

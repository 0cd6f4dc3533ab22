"""An envelope as the fields of an entry, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.errors import DecodeError
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.events.envelope import EventEnvelope

_PREFIX: Final = b"ce-"
_OF_DEAD_LETTERS: Final = b"dead-letter-"


def to_fields(envelope: EventEnvelope, source: str) -> list[str | bytes]:
    """Names and values by turns, always in the same order, which Redis stores in less space."""
    attributes = to_attributes(envelope, source)
    content_type = attributes.pop("datacontenttype")
    fields: list[str | bytes] = []
    for name, value in attributes.items():
        fields += ("ce-" + name, value)
    fields += ("content-type", content_type, "data", envelope.data)
    return fields


def to_delivery(entry: bytes, fields: Sequence[bytes], deliveries: int) -> Delivery:
    delivery = Delivery(None, delivery_count=deliveries, message=(entry, fields))
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        attributes = {
            name.removeprefix(_PREFIX).decode(): value.decode()
            for name, value in named.items()
            if name.startswith(_PREFIX)
        }
        delivery.envelope = from_attributes(attributes, named[b"data"])
    except DecodeError as error:
        delivery.problem = str(error)
    except KeyError:
        delivery.problem = "no field named data"
    except UnicodeDecodeError:
        delivery.problem = "an attribute is no valid Unicode text"
    return delivery


def to_dead_letter(stream: str, delivery: Delivery, reason: str) -> list[str | bytes]:
    """The fields as they came, and why and from where; what an earlier time said goes."""
    entry, fields = delivery.message
    kept: list[str | bytes] = []
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if not name.startswith(_OF_DEAD_LETTERS):
            kept += (name, value)
    return [
        *kept,
        *("dead-letter-reason", reason),
        *("dead-letter-stream", stream),
        *("dead-letter-entry", entry),
    ]

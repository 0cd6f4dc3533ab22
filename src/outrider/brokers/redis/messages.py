"""An envelope as the fields of a stream entry, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.errors import DecodeError
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.events.envelope import EventEnvelope

_PREFIX: Final = b"ce-"


def to_fields(envelope: EventEnvelope, cloudevents_source: str) -> list[str | bytes]:
    """Names and values by turns, always in the same order: Redis then stores each name once."""
    attributes = to_attributes(envelope, cloudevents_source)
    content_type = attributes.pop("datacontenttype")
    fields: list[str | bytes] = []
    for name, value in attributes.items():
        fields += ("ce-" + name, value)
    fields += ("content-type", content_type, "data", envelope.data)
    return fields


def to_delivery(entry: bytes, fields: Sequence[bytes]) -> Delivery:
    """Never raises: `problem` says why an entry is no event, without any of its values."""
    delivery = Delivery(None, message=(entry, fields))
    try:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
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
    except Exception as error:  # noqa: BLE001 - anybody may have sent anything
        delivery.problem = f"it cannot be read ({type(error).__name__})"
    return delivery

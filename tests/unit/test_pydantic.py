"""Pydantic models as events keep the promises of dataclass events."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, ValidationError

from outrider import (
    DecodeError,
    EventBus,
    Handlers,
    InMemoryEventBus,
    InvalidEvent,
    deserialize_event,
    serialize_event,
    upcasts,
)
from outrider.integrations.pydantic import PydanticEvent


class Kind(Enum):
    NEW = "new"


class Item(BaseModel):
    sku: str
    price: Decimal


class CartFilled(PydanticEvent, type="cart.filled", version=2):
    cart_id: UUID
    kind: Kind = Kind.NEW
    items: list[Item] = []
    until: datetime | None = None
    weight: float = 0.0


@upcasts(CartFilled, version=1)
def add_items(payload: dict[str, object]) -> dict[str, object]:
    return {**payload, "items": []}


def filled(**fields: object) -> CartFilled:
    items = [Item(sku="a", price=Decimal("1.10"))]
    return CartFilled(**{"cart_id": uuid4(), "items": items, **fields})  # type: ignore[arg-type]


def test_model_event_comes_back_equal() -> None:
    event = filled(until=datetime(2026, 1, 1, tzinfo=UTC))

    assert deserialize_event("cart.filled", serialize_event(event)) == event
    assert event.event_id.version == 7
    assert (event.aggregate_type, event.aggregate_id) == ("cart", str(event.cart_id))
    assert event.to_envelope().event_version == 2


async def test_model_event_goes_through_bus_and_handlers() -> None:
    handlers, bus, seen = Handlers(), EventBus(), []
    handlers.handles(CartFilled)(seen.append)

    bus.emit(filled())
    (event,) = bus.collect()
    await InMemoryEventBus(handlers).publish(event.to_envelope())

    assert seen == [event]


def test_model_event_is_immutable_and_quiet() -> None:
    event = filled(items=[Item(sku="canary", price=Decimal(1))])

    with pytest.raises(ValidationError):
        event.weight = 2.0  # type: ignore[misc]
    assert "canary" not in f"{event} {event!r}"
    with pytest.raises(ValidationError) as caught:
        CartFilled(cart_id="canary")  # type: ignore[arg-type]
    assert "canary" not in str(caught.value)


def test_bad_values_are_refused_naming_the_field() -> None:
    with pytest.raises(InvalidEvent, match="cart.filled: weight: NaN"):
        serialize_event(filled(weight=float("nan")))
    with pytest.raises(InvalidEvent, match="cart.filled: until: naive"):
        serialize_event(filled(until=datetime(2026, 1, 1)))
    with pytest.raises(InvalidEvent, match=r"items\[0\].sku: contains the character U\+0000"):
        serialize_event(filled(items=[Item(sku="\x00", price=Decimal(1))]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cart_id": "canary"}, "cart_id: uuid"),
        ({"kind": "canary"}, "kind: enum"),
        ({"event_id": None}, "event_id: uuid"),
    ],
)
def test_bad_stored_text_is_a_decode_error_without_the_value(
    change: dict[str, object], message: str
) -> None:
    stored = json.loads(serialize_event(filled()))

    with pytest.raises(DecodeError, match=f"cart.filled version 2: {message}") as caught:
        deserialize_event("cart.filled", json.dumps({**stored, **change}))
    assert "canary" not in str(caught.value)


def test_missing_id_is_not_invented() -> None:
    stored = json.loads(serialize_event(filled()))
    del stored["event_id"]

    with pytest.raises(DecodeError, match="event_id: missing"):
        deserialize_event("cart.filled", json.dumps(stored))


def test_old_rows_are_upcast() -> None:
    stored = json.loads(serialize_event(filled()))
    del stored["items"]

    assert deserialize_event("cart.filled", json.dumps(stored), version=1).items == []

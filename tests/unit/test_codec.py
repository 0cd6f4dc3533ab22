"""Events to JSON and back: every type, every refusal, old versions."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from outrider import (
    ConfigurationError,
    DecodeError,
    DomainEvent,
    InvalidEvent,
    Limits,
    deserialize_event,
    serialize_event,
    upcasts,
)
from tests.support.bad_events import (
    BAD_EVENTS,
    account,
    everything,
    tree,
)
from tests.support.shop import (
    Role,
    TreePlanted,
)

if TYPE_CHECKING:
    pass


def stored(event: DomainEvent, **changes: Any) -> str:
    return json.dumps({**json.loads(serialize_event(event)), **changes})


def test_every_field_comes_back_equal() -> None:
    event = everything()

    again = deserialize_event("thing.happened", serialize_event(event))

    assert again == event
    assert type(again.role) is Role
    assert again.number == 2**80
    assert str(again.amount) == "1.10"
    assert again.at.utcoffset() == timedelta(hours=2)


def test_payload_is_plain_json_text_with_id_and_time() -> None:
    event = account(role=Role.USER)

    text = serialize_event(event)

    assert isinstance(text, str)
    assert json.loads(text) == {
        "event_id": str(event.event_id),
        "occurred_at": event.occurred_at.isoformat().replace("+00:00", "Z"),
        "account_id": str(event.account_id),
        "email": "a@example.org",
        "role": "user",
    }


@pytest.mark.fault("E9")
def test_json_with_other_key_order_and_spaces_is_the_same_event() -> None:
    event = everything()
    shuffled = dict(sorted(json.loads(serialize_event(event)).items(), reverse=True))

    assert deserialize_event("thing.happened", json.dumps(shuffled, indent=1).encode()) == event


@pytest.mark.fault("E4", "E5", "E6", "E7", "E8", "E10", "T2")
@pytest.mark.parametrize("case", BAD_EVENTS)
def test_bad_input_is_refused_naming_type_and_field(case: str) -> None:
    make, message = BAD_EVENTS[case]

    with pytest.raises(InvalidEvent, match=message) as caught:
        serialize_event(make())

    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None


def test_aggregate_id_that_is_too_large_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidEvent, match="number: integer too large"):
        everything(number=10**5_000).to_envelope()


def test_size_and_depth_limits_are_settings() -> None:
    event = account(email="x" * 300_000)

    assert len(serialize_event(event, Limits(max_bytes=400_000))) > 300_000
    with pytest.raises(InvalidEvent, match="over the limit of 1,000"):
        serialize_event(event, Limits(max_bytes=1_000))
    with pytest.raises(InvalidEvent, match="over the limit of 10"):
        serialize_event(DomainEvent("a.b", "a", 1, {"x": "long enough"}), Limits(max_bytes=10))


def test_nesting_within_the_limit_is_fine() -> None:
    event = TreePlanted(tree_id=1, root=tree(40))

    assert deserialize_event("tree.planted", serialize_event(event)) == event


MISSING = json.dumps({"email": "a"})
BAD_TEXTS: dict[str, tuple[str, str]] = {
    "missing field": ("{}", "AccountOpened version 1.*missing required field `account_id`"),
    "missing event id": (
        json.dumps(
            {"account_id": str(uuid4()), "email": "a", "occurred_at": "2026-01-01T00:00:00Z"}
        ),
        "missing required field `event_id`",
    ),
    "wrong type": (stored(account(), email=7), r"Expected `str`, got `int` - at `\$.email`"),
    "unknown enum value": (stored(account(), role="king"), r"invalid value - at `\$.role`"),
    "bad uuid": (stored(account(), account_id="nobody"), r"Invalid UUID - at `\$.account_id`"),
    "no object": ("[]", "Expected `object`, got `array`"),
    "not json": ("{", "truncated"),
    "empty": ("", "truncated"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_bad_stored_text_is_a_decode_error_naming_type_and_field(case: str) -> None:
    text, message = BAD_TEXTS[case]

    with pytest.raises(DecodeError, match=message) as caught:
        deserialize_event("AccountOpened", text)

    assert isinstance(caught.value, ValueError)
    assert "nobody" not in str(caught.value)
    assert "king" not in str(caught.value)


@pytest.mark.fault("E3")
@pytest.mark.parametrize("name", ["nobody.knows", "os.system", "builtins.eval", "json.JSONDecoder"])
def test_unknown_type_is_a_value_error_and_imports_nothing(name: str) -> None:
    before = set(sys.modules)

    with pytest.raises(ValueError, match=f"unknown event type '{name}'"):
        deserialize_event(name, "{}")

    assert set(sys.modules) == before


@dataclass(frozen=True, kw_only=True)
class PriceChanged(DomainEvent, type="product.price_changed", version=3):
    product_id: int
    amount: Decimal
    currency: str
    reason: str = ""


@upcasts(PriceChanged, version=1)
def price_to_amount(payload: dict[str, Any]) -> dict[str, Any]:
    payload["amount"] = str(payload.pop("price"))
    return payload


@upcasts(PriceChanged, version=2)
def everything_was_in_euro(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "currency": "EUR"}


def old_price(**fields: Any) -> str:
    usual = {"event_id": str(uuid4()), "occurred_at": "2026-01-01T00:00:00Z", "product_id": 5}
    return json.dumps({**usual, **fields})


def test_old_rows_become_events_of_today() -> None:
    first = deserialize_event("product.price_changed", old_price(price=7), version=1)
    second = deserialize_event("product.price_changed", old_price(amount="7"), version=2)

    assert (first.amount, first.currency) == (second.amount, second.currency) == (Decimal(7), "EUR")


def test_envelope_remembers_the_version_for_its_reader() -> None:
    event = PriceChanged(product_id=1, amount=Decimal(2), currency="USD")
    envelope = event.to_envelope()

    assert envelope.event_version == 3
    assert envelope.to_event() == envelope.payload_as(PriceChanged) == event


@pytest.mark.fault("E3")
@pytest.mark.parametrize("version", [0, -1, 4])
def test_unknown_version_is_a_decode_error(version: int) -> None:
    with pytest.raises(
        DecodeError, match=rf"version {version}: this release knows versions up to 3"
    ):
        deserialize_event("product.price_changed", old_price(), version=version)


def test_gap_in_the_chain_of_upcasters_names_the_missing_step() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Gap(DomainEvent, type="gap.found", version=2):
        gap_id: int

    with pytest.raises(DecodeError, match=r"gap.found version 1: no upcaster.*@upcasts\(Gap"):
        deserialize_event("gap.found", "{}", version=1)


def test_failing_upcaster_does_not_repeat_the_payload() -> None:
    with pytest.raises(DecodeError, match="its upcaster raised KeyError") as caught:
        deserialize_event("product.price_changed", old_price(canary=1), version=1)
    assert caught.value.__cause__ is None


def test_second_upcaster_for_one_step_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="version 1 already has an upcaster"):
        upcasts(PriceChanged, version=1)(lambda payload: payload)


def test_annotation_no_codec_knows_is_reported_with_the_class() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Odd(DomainEvent, type="odd.one"):
        odd_id: int
        either: UUID | str

    with pytest.raises(ConfigurationError, match="Odd"):
        Odd(odd_id=1, either="x")

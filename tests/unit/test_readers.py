"""Readers of events: tolerant of unknown fields by default, strict by class keyword."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from outrider import (
    DecodeError,
    DomainEvent,
    EventBus,
    EventEnvelope,
    Handlers,
    InProcessPublisher,
    deserialize_event,
    serialize_event,
    upcasts,
)
from outrider.events.event import Event
from outrider.events.strict_json import DEFAULT_LIMITS
from outrider.integrations.pydantic import PydanticEvent
from outrider.recording.outbox import with_context


@dataclass(frozen=True, kw_only=True)
class Part:
    sku: str
    price: Decimal = Decimal(0)


@dataclass(frozen=True, kw_only=True)
class BoxPacked(DomainEvent, type="box.packed", version=2):
    box_id: int
    parts: list[Part] = field(default_factory=list)
    lid: Part | None = None
    by_place: dict[str, Part] | None = None


@upcasts(BoxPacked, version=1)
def number_to_id(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "box_id": payload["number"]}


@dataclass(frozen=True, kw_only=True)
class BoxSealed(DomainEvent, type="box.sealed", strict=True):
    box_id: int
    lid: Part | None = None


class BoxSent(PydanticEvent, type="box.sent"):
    box_id: int
    note: str = ""


class BoxLost(PydanticEvent, type="box.lost", strict=True):
    box_id: int


TOLERANT: list[Event] = [
    BoxPacked(box_id=1, parts=[Part(sku="a")], lid=Part(sku="l"), by_place={"x": Part(sku="b")}),
    BoxSent(box_id=1, note="fragile"),
]
STRICT: list[Event] = [BoxSealed(box_id=1, lid=Part(sku="l")), BoxLost(box_id=1)]


def of_a_newer_producer(event: Event) -> EventEnvelope:
    """The message of a release that has added an optional field."""
    envelope = event.to_envelope()
    data = json.dumps({**envelope.payload, "colour": "red"}).encode()
    return envelope.with_metadata(envelope.metadata, data)


@pytest.mark.parametrize("event", TOLERANT, ids=lambda event: event.event_type)
async def test_handler_that_knows_an_older_class_reads_a_message_with_an_added_field(
    event: Event,
) -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(type(event))
    def note(event: Event, envelope: EventEnvelope) -> None:
        seen.append((event, envelope.payload["colour"]))

    await InProcessPublisher(handlers).publish(of_a_newer_producer(event))

    assert seen == [(event, "red")]


@pytest.mark.parametrize("place", ["parts", "lid", "by_place"])
def test_added_field_of_a_nested_record_is_ignored(place: str) -> None:
    event = TOLERANT[0]
    fields = json.loads(serialize_event(event))
    nested = fields[place]
    record = nested[0] if place == "parts" else nested["x"] if place == "by_place" else nested
    record["colour"] = "red"

    assert deserialize_event("box.packed", json.dumps(fields)) == event


@pytest.mark.parametrize("event", STRICT, ids=lambda event: event.event_type)
def test_strict_class_refuses_an_added_field_and_names_it(event: Event) -> None:
    assert event.to_envelope().to_event() == event
    with pytest.raises(DecodeError, match=rf"{event.event_type} version 1: .*colour"):
        of_a_newer_producer(event).to_event()


def test_strict_class_refuses_an_added_field_of_a_nested_record() -> None:
    fields = json.loads(serialize_event(STRICT[0]))
    fields["lid"]["colour"] = "red"

    with pytest.raises(DecodeError, match=r"unknown field `colour` - at `\$.lid`"):
        deserialize_event("box.sealed", json.dumps(fields))


def test_strictness_is_inherited_and_can_be_given_up() -> None:
    @dataclass(frozen=True, kw_only=True)
    class StrictEvent(DomainEvent, abstract=True, strict=True): ...

    @dataclass(frozen=True, kw_only=True)
    class CrateFilled(StrictEvent, type="crate.filled"):
        crate_id: int

    @dataclass(frozen=True, kw_only=True, slots=True)
    class CrateOpened(StrictEvent, type="crate.opened", strict=False):
        crate_id: int

    with pytest.raises(DecodeError, match="colour"):
        of_a_newer_producer(CrateFilled(crate_id=1)).to_event()
    assert of_a_newer_producer(opened := CrateOpened(crate_id=1)).to_event() == opened


def test_what_is_recorded_stays_strict() -> None:
    with pytest.raises(TypeError, match="colour"):
        BoxPacked(box_id=1, colour="red")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="colour"):
        BoxSent(box_id=1, colour="red")  # type: ignore[call-arg]


def test_old_version_is_upcast_and_its_other_fields_are_ignored() -> None:
    old = {"event_id": str(uuid4()), "occurred_at": "2026-01-01T00:00:00Z", "number": 7}

    assert deserialize_event("box.packed", json.dumps(old), version=1).box_id == 7


def test_tolerant_reader_still_needs_id_time_and_fields_of_the_declared_type() -> None:
    fields = json.loads(serialize_event(TOLERANT[0]))

    for name in ("event_id", "occurred_at", "box_id"):
        rest = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(DecodeError, match=f"missing required field `{name}`"):
            deserialize_event("box.packed", json.dumps(rest))
    with pytest.raises(DecodeError, match=r"Expected `int`, got `str` - at `\$.box_id`"):
        deserialize_event("box.packed", json.dumps({**fields, "box_id": "7"}))


@pytest.mark.parametrize(
    ("event_class", "version"), [(BoxPacked, 2), (BoxSealed, 1), (BoxSent, 1), (BoxLost, 1)]
)
async def test_typed_handler_handles_an_ad_hoc_event_that_fits_its_fields(
    event_class: type[Event], version: int
) -> None:
    ad_hoc = DomainEvent(event_class.event_type, "box", 5, {"box_id": 5}, event_version=version)
    handlers, seen = Handlers(), []
    handlers.handles(event_class)(seen.append)

    await InProcessPublisher(handlers).publish(ad_hoc.to_envelope())

    [event] = seen
    assert type(event) is event_class
    assert (event.box_id, event.event_id) == (5, ad_hoc.event_id)
    assert event.occurred_at == ad_hoc.occurred_at


@pytest.mark.parametrize("event_class", [BoxSealed, BoxLost])
def test_ad_hoc_event_of_a_bus_is_read_without_the_fields_that_the_outbox_added(
    event_class: type[Event],
) -> None:
    bus = EventBus()
    bus.emit(DomainEvent(event_class.event_type, "box", 5, {"box_id": 5}))
    [ad_hoc] = bus.collect()

    stored = with_context(ad_hoc.to_envelope(), {"tenant": "t-1"}, DEFAULT_LIMITS)

    assert stored.payload["tenant"] == "t-1"
    assert stored.to_event().event_id == ad_hoc.event_id


def test_ad_hoc_event_that_does_not_fit_is_refused_by_its_field() -> None:
    ad_hoc = DomainEvent("box.packed", "box", 5, {"number": 5}, event_version=2)

    with pytest.raises(DecodeError, match="box.packed version 2: .*missing .*`box_id`"):
        ad_hoc.to_envelope().to_event()

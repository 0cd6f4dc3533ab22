"""Declaring events: names, aggregates, ids and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outrider import ConfigurationError, DomainEvent, EventBus, EventId, InvalidEvent, Outbox
from outrider.store.schema.tables import OutboxRecord
from tests.support.shop import AccountOpened, OrderPlaced

ORDER = uuid4()


def placed() -> OrderPlaced:
    return OrderPlaced(order_id=ORDER, total=Decimal("9.50"), lines=[])


def test_class_keywords_name_type_and_aggregate() -> None:
    event = placed()

    assert event.event_type == OrderPlaced.event_type == "order.placed"
    assert event.aggregate_type == "order"
    assert event.aggregate_id == str(ORDER)
    assert event.event_version == 1


@pytest.mark.parametrize("event", [placed(), DomainEvent("order.paid", "order", 7, {"sum": 1})])
def test_envelope_of_an_event_has_its_id_type_aggregate_and_time(event: DomainEvent) -> None:
    envelope = event.to_envelope()

    for name in ("event_id", "event_type", "aggregate_type", "aggregate_id", "occurred_at"):
        assert getattr(envelope, name) == getattr(event, name)


def test_type_defaults_to_the_class_name_and_aggregate_to_the_id_field() -> None:
    event = AccountOpened(account_id=ORDER, email="a@example.org")

    assert event.event_type == "AccountOpened"
    assert (event.aggregate_type, event.aggregate_id) == ("account", str(ORDER))


def test_aggregate_defaults_to_the_part_before_the_dot() -> None:
    @dataclass(frozen=True, kw_only=True)
    class SessionCreated(DomainEvent, type="session.held"):
        owner_id: str
        session_id: int

    assert SessionCreated(owner_id="o", session_id=5).aggregate_id == "5"
    assert SessionCreated.aggregate_type == "session"


def test_any_field_can_be_the_aggregates_id() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Renamed(DomainEvent, type="thing.renamed", aggregate="document", aggregate_id="path"):
        path: str

    event = Renamed(path="a/b")

    assert (event.aggregate_type, event.aggregate_id) == ("document", "a/b")


def test_abstract_class_lends_fields_and_is_no_event_itself() -> None:
    @dataclass(frozen=True, kw_only=True)
    class AccountEvent(DomainEvent, abstract=True):
        account_id: int

    @dataclass(frozen=True, kw_only=True)
    class Closed(AccountEvent, type="account.closed"):
        reason: str

    assert Closed(account_id=3, reason="x").aggregate_id == "3"
    assert not hasattr(AccountEvent, "event_type")


def test_id_and_time_come_by_themselves_and_can_be_given() -> None:
    before, event = datetime.now(UTC), placed()

    assert event.event_id.version == 7
    assert before <= event.occurred_at <= datetime.now(UTC)
    assert event.occurred_at.tzinfo is UTC

    then = datetime(2020, 1, 1, tzinfo=UTC)
    given = OrderPlaced(
        order_id=ORDER, total=Decimal(1), lines=[], event_id=UUID(int=9), occurred_at=then
    )
    assert (given.event_id, given.occurred_at) == (UUID(int=9), then)


def test_ids_rise_with_time_even_within_one_tick() -> None:
    ids = [EventId.new() for _ in range(5_000)]

    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_events_are_immutable_and_keyword_only() -> None:
    event = placed()

    with pytest.raises(dataclasses.FrozenInstanceError):
        event.total = Decimal(2)  # type: ignore[misc]
    with pytest.raises(TypeError):
        OrderPlaced(ORDER, Decimal(1), [])  # type: ignore[misc]


def test_equal_fields_make_equal_events_and_replace_checks_again() -> None:
    event = placed()

    assert dataclasses.replace(event) == event
    assert dataclasses.replace(event, total=Decimal(1)) != event
    assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301 - our own bytes
    with pytest.raises(InvalidEvent, match="total: expected Decimal, got str"):
        dataclasses.replace(event, total="1")


def test_printing_an_event_shows_no_field() -> None:
    event = AccountOpened(account_id=ORDER, email="canary@example.org")

    for text in (repr(event), str(event), f"{event}", f"{event!r}"):
        assert "canary" not in text
        assert "AccountOpened" in text
        assert str(event.event_id) in text


def test_slots_and_own_post_init_are_fine() -> None:
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Counted(DomainEvent, type="counter.counted", version=3):
        counter_id: int
        doubled: int = 0

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", self.counter_id * 2)

    event = Counted(counter_id=4)

    assert (event.doubled, event.event_type, event.event_version) == (8, "counter.counted", 3)


def test_two_classes_with_one_type_name_are_refused_by_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class First(DomainEvent, type="twice.used"):
        twice_id: int

    with pytest.raises(ConfigurationError, match=r"twice\.used.*First.*Second"):

        class Second(DomainEvent, type="twice.used"):
            twice_id: int


def test_class_without_a_recognisable_aggregate_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigurationError, match=r"Lonely.*night_id.*aggregate_id"):

        class Lonely(DomainEvent, type="night.over"):
            count: int


def test_fields_that_an_event_already_has_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="aggregate_id cannot be a field"):

        class Taken(DomainEvent, type="x.y"):
            aggregate_id: int


def test_forgotten_decorator_is_explained() -> None:
    class Bare(DomainEvent, type="bare.event"):
        bare_id: int

    with pytest.raises(TypeError, match=r"@dataclass\(frozen=True, kw_only=True\) above class"):
        Bare(bare_id=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", ["", "has space", "line\nbreak", "x" * 256, "ümlaut", "semi;colon"]
)
def test_type_names_that_no_broker_takes_are_refused(name: str) -> None:
    with pytest.raises(InvalidEvent, match="event type"):
        DomainEvent(name, "thing", 1, {})


def test_ad_hoc_event_has_type_aggregate_and_payload() -> None:
    group = uuid4()
    event = DomainEvent("group_message.created", "group_message", group, {"n": 1, "id": group})

    assert event.aggregate_id == str(group)
    assert event.payload == {"n": 1, "id": str(group)}
    assert event.to_envelope().payload == event.payload
    assert event == event
    assert event != DomainEvent("group_message.created", "group_message", group, {"n": 1})


def test_ad_hoc_event_keeps_the_payload_of_the_moment() -> None:
    payload = {"tags": ["a"]}
    event = DomainEvent("x.y", "x", 1, payload)

    payload["tags"].append("b")

    assert event.payload == {"tags": ["a"]}


def test_event_bus_keeps_order_and_is_empty_after_collect() -> None:
    bus, events = EventBus(), [placed(), DomainEvent("a.b", "a", 1, {}), placed()]

    for event in events:
        bus.emit(event)

    assert bus.has_events
    assert bus.event_count == 3
    assert bus.collect() == events
    assert not bus.has_events
    assert (bus.event_count, bus.collect()) == (0, [])


def test_bus_keeps_its_events_unless_all_were_recorded() -> None:
    bus, events, outbox = EventBus(), [placed(), placed()], Outbox()
    for event in events:
        bus.emit(event)

    with Session(create_engine("sqlite://")) as session, session.begin():
        with pytest.raises(InvalidEvent):
            outbox.flush(session, bus, bad=object())
        assert bus.event_count == 2
        assert outbox.flush(session, bus) == 2
        session.rollback()
    assert not bus.has_events


def test_event_bus_refuses_what_is_no_event() -> None:
    with pytest.raises(TypeError, match="expected a DomainEvent, got dict"):
        EventBus().emit({"type": "order.placed"})  # type: ignore[arg-type]


@pytest.mark.parametrize("aggregate_id", [0, 7, ORDER, "a"])
def test_record_takes_the_same_ids_of_aggregates_as_an_event(aggregate_id: str) -> None:
    event = DomainEvent("order.placed", "order", aggregate_id, {})
    record = OutboxRecord(
        event_type="order.placed",
        payload={},
        occurred_at=event.occurred_at,
        aggregate_id=aggregate_id,
    )

    assert record.aggregate_id == event.aggregate_id == str(aggregate_id)

"""Properties over generated event classes, values, envelopes and version chains."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import (
    DomainEvent,
    EventEnvelope,
    EventMetadata,
    deserialize_event,
    serialize_event,
    upcasts,
)

_numbers = count()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC) | OFFSETS)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, FINITE),
    (str, TEXT),
    (bool, st.booleans()),
    (UUID, st.uuids()),
    (Decimal, DECIMALS),
    (datetime, MOMENTS),
    (date, st.dates()),
    (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    (bytes, st.binary(max_size=20)),
    (Colour, st.sampled_from(Colour)),
]
KEYS = [(t, s) for t, s in SCALARS if t in (str, int, UUID, date)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
Typed = tuple[Any, st.SearchStrategy[Any]]


def record(members: list[Typed]) -> Typed:
    names = [f"f{i}" for i in range(len(members))]
    cls = make_dataclass(
        f"Record{next(_numbers)}",
        [(name, kind) for name, (kind, _) in zip(names, members, strict=True)],
        frozen=True,
        kw_only=True,
    )
    return cls, st.builds(cls, **{name: s for name, (_, s) in zip(names, members, strict=True)})


def containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda m: (list[m[0]], st.lists(m[1], max_size=3))),
        inner.map(lambda m: (tuple[m[0], ...], st.lists(m[1], max_size=3).map(tuple))),
        inner.map(lambda m: (m[0] | None, st.none() | m[1])),
        st.tuples(st.sampled_from(KEYS), inner).map(
            lambda kv: (dict[kv[0][0], kv[1][0]], st.dictionaries(kv[0][1], kv[1][1], max_size=3))
        ),
        st.sampled_from(SCALARS).map(lambda m: (set[m[0]], st.sets(m[1], max_size=3))),
        st.lists(inner, min_size=1, max_size=3).map(record),
        st.just((Any, JSON)),
    )


ANNOTATIONS = st.recursive(st.sampled_from(SCALARS), containers, max_leaves=4)


@st.composite
def typed_events(draw: st.DrawFn) -> DomainEvent:
    members = draw(st.lists(ANNOTATIONS, max_size=4))
    number = next(_numbers)
    namespace = {"__module__": __name__, "__annotations__": {"thing_id": int}}
    for index, (kind, _) in enumerate(members):
        namespace["__annotations__"][f"f{index}"] = kind
    base = type(DomainEvent)(f"Made{number}", (DomainEvent,), namespace, type=f"thing.made{number}")
    cls = dataclass(frozen=True, kw_only=True)(base)
    values = {f"f{i}": draw(strategy) for i, (_, strategy) in enumerate(members)}
    return cls(thing_id=draw(st.integers(0, 9)), occurred_at=draw(MOMENTS), **values)


@settings(max_examples=300, deadline=None)
@given(typed_events())
@pytest.mark.slow
def test_decoding_what_was_encoded_gives_an_equal_event(event: DomainEvent) -> None:
    text = serialize_event(event)

    assert deserialize_event(event.event_type, text) == event
    # PostgreSQL's jsonb reorders keys and adds spaces.
    assert (
        deserialize_event(event.event_type, json.dumps(json.loads(text), sort_keys=True)) == event
    )


METADATA = st.builds(
    EventMetadata,
    correlation_id=st.none() | TEXT,
    causation_id=st.none() | TEXT,
    user_id=st.none() | TEXT,
    trace_id=st.none() | TEXT,
    traceparent=st.none() | TEXT,
    tracestate=st.none() | TEXT,
)
ENVELOPES = st.builds(
    EventEnvelope,
    event_id=st.uuids(),
    event_type=st.from_regex(r"[a-z][a-z0-9_]{0,9}\.[a-z]{1,9}", fullmatch=True),
    aggregate_type=st.just("thing"),
    aggregate_id=TEXT.filter(lambda t: t.isprintable() and t),
    occurred_at=MOMENTS,
    payload=st.dictionaries(TEXT, JSON, max_size=4),
    metadata=METADATA,
    event_version=st.integers(1, 99),
)


@settings(max_examples=300, deadline=None)
@given(ENVELOPES)
@pytest.mark.slow
def test_envelopes_survive_json(envelope: EventEnvelope) -> None:
    again = EventEnvelope.from_json(envelope.to_json())

    assert again == envelope
    assert again.payload == envelope.payload
    assert again.occurred_at.utcoffset() == envelope.occurred_at.utcoffset()
    assert json.loads(envelope.to_json())["payload"] == envelope.payload


@settings(max_examples=50, deadline=None)
@given(current=st.integers(1, 12), data=st.data())
def test_upcasting_chains_end_at_the_current_version(current: int, data: st.DataObject) -> None:
    name = f"chain.made{next(_numbers)}"
    namespace = {
        "__module__": __name__,
        "__annotations__": {"chain_id": int, "steps": list[int]},
    }
    cls = type(DomainEvent)("Chain", (DomainEvent,), namespace, type=name, version=current)
    cls = dataclass(frozen=True, kw_only=True)(cls)
    for version in range(1, current):

        def step(payload: dict[str, Any], version: int = version) -> dict[str, Any]:
            return {**payload, "steps": [*payload["steps"], version]}

        upcasts(cls, version=version)(step)

    start = data.draw(st.integers(1, current))
    stored = {
        "event_id": str(uuid4()),
        "occurred_at": "2026-01-01T00:00:00Z",
        "chain_id": 1,
        "steps": [],
    }

    event = deserialize_event(name, json.dumps(stored), version=start)

    assert type(event) is cls
    assert event.steps == list(range(start, current))

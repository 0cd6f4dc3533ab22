"""Parts of the decisions example by themselves: its events, and the handlers of its dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.decisions import events
from examples.decisions.dashboard import DashboardEntry, NotAuthorized, projection
from examples.decisions.database import create_tables, units_of_work
from examples.decisions.events import SessionArchived, SessionCreated, SessionRenamed
from examples.decisions.sessions import CreateSession
from outrider import (
    DomainEvent,
    EventEnvelope,
    EventMetadata,
    InMemoryEventBus,
    deserialize_event,
    event_context,
    open_engine,
    serialize_event,
)
from outrider.admin import OutboxRepository
from outrider.consumer.sql_inbox import SqlProcessedEvents
from outrider.events.cloudevents import from_structured, to_structured
from tests.support.databases import DIALECTS, fresh

CANONICAL = {
    "session": {"created", "archived", "renamed"},
    "cycle": {"created", "archived", "branched"},
    "component": {"started", "completed", "revised"},
    "conversation": {"started", "message_sent"},
    "membership": {"created", "upgraded", "cancelled"},
}
CLASSES = [
    found
    for found in vars(events).values()
    if isinstance(found, type) and issubclass(found, DomainEvent) and found is not DomainEvent
]
OWNER = EventMetadata(user_id="ada", correlation_id="request-7")
SESSION = uuid4()


@pytest.fixture(params=DIALECTS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    with fresh(request.param, request, tmp_path) as database:
        engine = open_engine(database.url)
        await create_tables(engine)
        yield engine
        await engine.dispose()


def created(metadata: EventMetadata = OWNER) -> EventEnvelope:
    return SessionCreated(session_id=SESSION, user_id="ada", title="Move?").to_envelope(metadata)


def dashboard_of(engine: AsyncEngine) -> InMemoryEventBus:
    bus = InMemoryEventBus()
    for event_type, handler in projection(engine):
        bus.subscribe(event_type, handler)
    return bus


async def entries(engine: AsyncEngine) -> list[tuple[str, int]]:
    async with AsyncSession(engine) as session:
        rows = await session.execute(select(DashboardEntry.title, DashboardEntry.events))
        return [tuple(row) for row in rows]


async def marked(engine: AsyncEngine, envelope: EventEnvelope) -> bool:
    (name,) = [h.name for kind, h in projection(engine) if kind == envelope.event_type]
    return await SqlProcessedEvents(engine).contains(envelope.event_id, name)


def test_every_canonical_event_type_has_a_class_of_its_aggregate() -> None:
    expected = {f"{module}.{action}" for module, actions in CANONICAL.items() for action in actions}

    assert sorted(found.event_type for found in CLASSES) == sorted(expected)
    for found in CLASSES:
        assert found.aggregate_type == found.event_type.partition(".")[0]
        assert found.event_version == 1


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.event_type)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_canonical_event_survives_the_envelope_and_the_wire(
    kind: type[DomainEvent], data: st.DataObject
) -> None:
    types = get_type_hints(kind)
    own = {f.name for f in fields(kind)} - {"event_id", "occurred_at"}
    printable = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
    drawn = {str: printable, int: st.integers(-(2**53), 2**53)}
    event = kind(
        **{name: data.draw(drawn.get(types[name], st.from_type(types[name]))) for name in own}
    )

    envelope = event.to_envelope(OWNER)

    assert deserialize_event(event.event_type, serialize_event(event)) == event
    assert EventEnvelope.from_json(envelope.to_json()).payload_as(kind) == event
    assert from_structured(to_structured(envelope, "decisions")).to_event() == event
    assert envelope.aggregate_id == event.aggregate_id == str(getattr(event, event._id_field))


async def test_create_session_stores_session_created_with_the_user_and_the_request(
    engine: AsyncEngine,
) -> None:
    # when
    with event_context(user_id="ada", correlation_id="request-7"):
        session = await CreateSession(units_of_work(engine)).handle("ada", "Move?")

    # then
    (stored,) = await OutboxRepository(engine).fetch_unpublished(10)
    payload = stored.payload_as(SessionCreated)
    assert (payload.session_id, payload.user_id, payload.title) == (session.id, "ada", "Move?")
    assert stored.aggregate_id == str(session.id)
    assert stored.metadata == OWNER


async def test_second_delivery_is_skipped_also_at_the_same_moment(engine: AsyncEngine) -> None:
    # given
    bus, first = dashboard_of(engine), created()
    renamed = SessionRenamed(session_id=SESSION, title="Stay?").to_envelope(OWNER)

    # when
    await asyncio.gather(*(bus.publish(first) for _ in range(3)))
    await bus.publish_all([renamed, first, renamed])

    # then
    assert await entries(engine) == [("Stay?", 2)]


async def test_failed_delivery_is_not_marked_and_takes_effect_when_it_comes_again(
    engine: AsyncEngine,
) -> None:
    # given
    bus, event = dashboard_of(engine), created()
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE dashboard RENAME TO away"))

    # when
    with pytest.raises(ExceptionGroup):
        await bus.publish(event)

    # then
    assert not await marked(engine, event)

    # when
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE away RENAME TO dashboard"))
    await bus.publish(event)

    # then
    assert await marked(engine, event)
    assert await entries(engine) == [("Move?", 1)]


@pytest.mark.parametrize("metadata", [EventMetadata(), EventMetadata(user_id="mallory")], ids=str)
async def test_handlers_refuse_what_the_owner_did_not_do(
    engine: AsyncEngine, metadata: EventMetadata
) -> None:
    # given
    bus = dashboard_of(engine)
    await bus.publish(created())
    forged = [
        SessionCreated(session_id=uuid4(), user_id="ada", title="x").to_envelope(metadata),
        SessionRenamed(session_id=SESSION, title="x").to_envelope(metadata),
        SessionArchived(session_id=SESSION).to_envelope(metadata),
    ]

    # when
    for envelope in forged:
        with pytest.raises(ExceptionGroup) as caught:
            await bus.publish(envelope)

        # then
        assert caught.group_contains(NotAuthorized)
        assert not await marked(engine, envelope)
        assert "mallory" not in repr(caught.value.exceptions)
    assert await entries(engine) == [("Move?", 1)]

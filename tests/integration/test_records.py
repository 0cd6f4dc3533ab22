"""OutboxRecord in a session: one for each dispatched event, and those that an application makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outrider import (
    DomainEvent,
    EventEnvelope,
    InMemoryEventBus,
    InvalidEvent,
    Outbox,
    OutboxEventDispatcher,
    OutboxRecord,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    event_context,
    map_outbox,
    serialize_event,
)
from outrider.admin import OutboxRepository
from outrider.signals import Signal, WokenUp
from tests.support.databases import business, engine_with_outbox, transactional_sqlite
from tests.support.until import until

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class DoorOpened(DomainEvent, type="door.opened"):
    door_id: int
    by: str = "somebody"


@pytest.fixture
async def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = await engine_with_outbox("sqlite+aiosqlite", request, tmp_path)
    transactional_sqlite(engine)
    await engine.dispose()
    map_outbox()
    yield engine
    await engine.dispose()


def records_in(session: AsyncSession) -> list[OutboxRecord]:
    records = [added for added in session.new if isinstance(added, OutboxRecord)]
    return sorted(records, key=lambda record: record.id)


async def stored(engine: AsyncEngine) -> list[EventEnvelope]:
    return await OutboxRepository(engine).fetch_unpublished(100)


def opened(**fields: object) -> OutboxRecord:
    """A record with a type, a payload and a time, and nothing else unless a test says so."""
    given = {"event_type": "door.opened", "payload": {"door_id": 1}, "occurred_at": NOW, **fields}
    return OutboxRecord(**given)  # type: ignore[arg-type]


async def test_dispatch_adds_one_record_per_event_and_neither_flushes_nor_commits(
    sqlite: AsyncEngine, outbox: Outbox
) -> None:
    events, calls, statements = [DoorOpened(door_id=n) for n in (1, 2)], [], []
    async with AsyncSession(sqlite) as session:
        await session.connection()
        by_hand = opened(aggregate_id="another")
        session.add(by_hand)  # so that a flush would have something to do
        for name in ("before_flush", "before_commit"):
            event.listen(session.sync_session, name, lambda *_, name=name: calls.append(name))
        event.listen(
            sqlite.sync_engine, "before_cursor_execute", lambda *a: statements.append(a[2])
        )

        assert OutboxEventDispatcher(session, outbox).dispatch(events) == 2

        assert by_hand in session.new
        first, second = (record for record in records_in(session) if record is not by_hand)
        assert (calls, statements) == ([], [])

    assert (first.id, second.id) == (events[0].event_id, events[1].event_id)
    assert (first.event_type, first.aggregate_type, first.aggregate_id) == (
        "door.opened",
        "door",
        "1",
    )
    assert first.payload == events[0].payload
    assert first.occurred_at == events[0].occurred_at
    assert (first.status, first.retry_count, first.published_at) == ("pending", 0, None)
    assert "somebody" not in repr(first)


async def test_record_with_type_payload_and_time_is_stored_and_relayed(
    database: AsyncEngine,
) -> None:
    map_outbox()
    given = DoorOpened(door_id=7)
    record = OutboxRecord(
        event_type="door.opened", payload={"door_id": 7}, occurred_at=given.occurred_at
    )
    as_text = OutboxRecord(
        event_type="door.opened",
        payload=serialize_event(given),  # type: ignore[arg-type]
        occurred_at=given.occurred_at,
    )
    told: list[Signal] = []
    bus, config = InMemoryEventBus(), RelayConfig(poll_interval=timedelta(hours=1))
    async with OutboxRelay(SqlOutboxStore(database), bus, config, on_signal=told.append):
        async with AsyncSession(database) as session, session.begin():
            session.add_all([record, as_text])

        await until(lambda: bus.event_count == 2)

    by_id = {envelope.event_id: envelope for envelope in bus.published_events}
    envelope = by_id[record.id]
    assert (envelope.event_type, envelope.payload) == ("door.opened", {"door_id": 7})
    assert envelope.occurred_at == given.occurred_at
    assert (envelope.aggregate_type, envelope.aggregate_id) == ("door", str(record.id))
    assert by_id[as_text.id].to_event() == given
    assert any(isinstance(signal, WokenUp) for signal in told)


async def test_records_are_inserted_last_and_in_the_order_of_recording(
    sqlite: AsyncEngine, outbox: Outbox
) -> None:
    statements: list[str] = []
    event.listen(sqlite.sync_engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    async with AsyncSession(sqlite) as session, session.begin():
        session.add(opened(aggregate_type="door", aggregate_id="a"))
        outbox.record(session, DoorOpened(door_id=2))
        await session.flush()
        session.add(opened(aggregate_type="door", aggregate_id="c"))
        await session.execute(insert(business).values(id="later"))

    inserts = [statement.split()[2] for statement in statements if "INSERT" in statement]
    assert inserts[0] == "business"
    assert [e.aggregate_id for e in await stored(sqlite)] == ["a", "2", "c"]


async def test_rollback_and_savepoints_take_their_records_back_and_no_other(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    map_outbox()
    async with AsyncSession(engine) as session:
        await session.connection()
        session.add(opened(aggregate_id="first"))
        outbox.record(session, DoorOpened(door_id=1))
        session.add(opened(aggregate_id="by hand"))
        async with session.begin_nested():
            outbox.record(session, DoorOpened(door_id=2))
            assert len(records_in(session)) == 1  # those from before the savepoint were flushed
        savepoint = await session.begin_nested()
        outbox.record(session, DoorOpened(door_id=3))
        session.add(opened(aggregate_id="gone"))
        await savepoint.rollback()
        assert records_in(session) == []
        session.add(opened(aggregate_id="last"))
        await session.commit()

        session.add(opened(aggregate_id="rolled back"))
        outbox.record(session, DoorOpened(door_id=4))
        assert len(records_in(session)) == 2
        await session.rollback()
        assert records_in(session) == []
        await session.commit()

    assert [e.aggregate_id for e in await stored(engine)] == ["first", "1", "by hand", "2", "last"]


async def test_record_that_is_expunged_before_a_flush_is_not_stored_and_later_it_is(
    sqlite: AsyncEngine, outbox: Outbox
) -> None:
    async with AsyncSession(sqlite) as session:
        await session.connection()
        outbox.record(session, DoorOpened(door_id=1))
        session.add(again := opened(aggregate_id="again"))
        session.expunge_all()
        session.add(again)
        outbox.record(session, DoorOpened(door_id=2))
        await session.flush()
        session.expunge_all()
        await session.commit()

    assert [e.aggregate_id for e in await stored(sqlite)] == ["again", "2"]


async def test_changes_of_a_record_before_the_flush_are_stored_and_checked(
    sqlite: AsyncEngine, outbox: Outbox
) -> None:
    async with AsyncSession(sqlite) as session:
        await session.connection()
        outbox.record(session, *(DoorOpened(door_id=n) for n in (1, 2)))
        assigned, changed = records_in(session)
        assigned.event_type = "door.closed"
        changed.payload["by"] = "nobody"
        session.add(made := opened())
        made.aggregate_id = "moved"
        await session.commit()

        session.add(bad := opened())
        bad.payload = {"at": object()}
        with pytest.raises(InvalidEvent, match=r"door\.opened: at: object has no JSON form"):
            await session.commit()

    first, second, third = await stored(sqlite)
    assert (first.event_type, second.payload["by"], third.aggregate_id) == (
        *("door.closed", "nobody", "moved"),
    )


async def test_record_gets_the_context_of_its_request(sqlite: AsyncEngine) -> None:
    with event_context(correlation_id="request-1"):
        record = opened()
    async with AsyncSession(sqlite) as session, session.begin():
        session.add(record)

    (envelope,) = await stored(sqlite)
    assert envelope.metadata.correlation_id == "request-1"


async def test_merged_record_is_stored(sqlite: AsyncEngine) -> None:
    record = opened()
    async with AsyncSession(sqlite) as session, session.begin():
        await session.merge(record)

    assert [e.event_id for e in await stored(sqlite)] == [record.id]


async def test_record_that_a_hook_adds_during_the_commit_is_stored(sqlite: AsyncEngine) -> None:
    async with AsyncSession(sqlite) as session, session.begin():
        event.listen(
            session.sync_session, "before_commit", lambda s: s.add(opened(aggregate_id="late"))
        )
        session.add(opened(aggregate_id="first"))

    assert [e.aggregate_id for e in await stored(sqlite)] == ["first", "late"]


async def test_stored_record_can_be_read_and_repaired(sqlite: AsyncEngine) -> None:
    async with AsyncSession(sqlite) as session, session.begin():
        session.add(opened(max_retries=3))
    async with AsyncSession(sqlite) as session, session.begin():
        record = (await session.scalars(select(OutboxRecord))).one()
        assert record.max_retries == 3
        record.status = "failed"

    assert await stored(sqlite) == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"event_type": "no type"}, "event type 'no type': use 1 to 255 letters"),
        ({"payload": [1]}, "door.opened: payload: expected a dict, got list"),
        ({"payload": {"at": NOW.replace(tzinfo=None)}}, "door.opened: at: naive datetime"),
        ({"occurred_at": "today"}, "door.opened: occurred_at: expected datetime, got str"),
        ({"id": "1"}, "door.opened: id: expected UUID, got str: write EventId()"),
        ({"metadata": {"user_id": 1}}, "door.opened: metadata: Expected `str | null`"),
        ({"max_retries": 0}, "door.opened: max_retries: must be at least 1"),
        ({"status": "published"}, "door.opened: status: the relay writes it; leave it out"),
        ({"position": 1}, "door.opened: position: the relay writes it; leave it out"),
    ],
)
def test_record_that_cannot_be_stored_is_refused_where_it_is_made(
    fields: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidEvent) as caught:
        opened(**fields)

    assert str(caught.value).startswith(complaint)


def test_record_of_an_aggregate_has_its_lane() -> None:
    row = opened(aggregate_type="door", aggregate_id="7", status="pending", retry_count=0)
    recorded = DoorOpened(door_id=7).to_envelope()

    assert (row.aggregate_type, row.aggregate_id) == (recorded.aggregate_type, "7")
    assert opened(aggregate_type="door", aggregate_id="7").lane == row.lane
    assert isinstance(row.id, UUID)

"""Recording events with the caller's own changes, by every door there is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Select, event, insert, select, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker

from outrider import (
    ConfigurationError,
    DomainEvent,
    EventBus,
    EventEnvelope,
    EventMetadata,
    Handlers,
    InMemoryEventBus,
    create_all,
)
from outrider.events.context import event_context
from outrider.lanes import LANES, aggregate_key
from outrider.recording.outbox import Outbox, OutboxEventDispatcher
from outrider.recording.repository import OutboxRepository
from outrider.signals import EventsRecorded, Signal
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxRecord, OutboxTables, map_outbox
from outrider.testing.services import Services
from tests.support.databases import business, create_database


@dataclass(frozen=True, kw_only=True)
class SeatTaken(DomainEvent, type="seat.taken"):
    seat_id: int
    by: str = "somebody"


def in_order() -> Select[tuple[OutboxRecord]]:
    map_outbox()
    return select(OutboxRecord).order_by(OutboxRecord.position)  # type: ignore[arg-type]


async def rows_in(engine: AsyncEngine) -> list[OutboxRecord]:
    async with AsyncSession(engine) as session:
        return list((await session.scalars(in_order())).all())


async def business_ids(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(business.c.id))).scalars())


async def test_row_has_everything_that_a_relay_and_a_person_need(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    event = SeatTaken(seat_id=7)

    async with AsyncSession(engine) as session, session.begin():
        outbox.record(session, event)

    (row,) = await rows_in(engine)
    assert (row.id, row.event_type, row.event_version) == (event.event_id, "seat.taken", 1)
    assert (row.aggregate_type, row.aggregate_id) == ("seat", "7")
    assert row.occurred_at == event.occurred_at
    assert row.payload == event.to_envelope().payload
    assert (row.status, row.retry_count, row.published_at) == ("pending", 0, None)
    assert abs(row.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert row.lane == aggregate_key("default", "seat", "7") % LANES
    assert "somebody" not in repr(row)


async def test_dispatcher_neither_flushes_nor_commits(engine: AsyncEngine, outbox: Outbox) -> None:
    async with AsyncSession(engine) as session:
        await session.execute(insert(business).values(id="a"))
        dispatcher = OutboxEventDispatcher(session, outbox)

        dispatcher.dispatch([SeatTaken(seat_id=1), SeatTaken(seat_id=2)])
        await dispatcher.dispatch([])

        before = (await session.execute(select(outbox.tables.outbox))).all()
        await session.commit()

    assert before == []
    assert [row.aggregate_id for row in await rows_in(engine)] == ["1", "2"]
    assert await business_ids(engine) == ["a"]


async def test_rolled_back_together(engine: AsyncEngine, outbox: Outbox) -> None:
    async with AsyncSession(engine) as session:
        await session.execute(insert(business).values(id="a"))
        outbox.record(session, SeatTaken(seat_id=1))
        await session.rollback()

    assert (await rows_in(engine), await business_ids(engine)) == ([], [])


async def test_commit_that_fails_takes_both_back(engine: AsyncEngine, outbox: Outbox) -> None:
    async with AsyncSession(engine) as session:
        await session.execute(insert(business).values(id="a"))
        own = (await session.connection()).sync_connection

        def fail(connection: Connection) -> None:
            if connection is own:
                raise LookupError

        event.listen(engine.sync_engine, "commit", fail)
        outbox.record(session, SeatTaken(seat_id=1))
        with pytest.raises(LookupError):
            await session.commit()
        await session.rollback()

    assert (await rows_in(engine), await business_ids(engine)) == ([], [])


async def test_bare_connection_records_too(engine: AsyncEngine, outbox: Outbox) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(business).values(id="a"))
        outbox.record(connection, SeatTaken(seat_id=1), SeatTaken(seat_id=2))

    assert len(await rows_in(engine)) == 2


async def test_plain_session_records_too(engine: AsyncEngine, outbox: Outbox) -> None:
    """The hook hangs on Session, which is what AsyncSession drives."""

    def work(session: Session) -> None:
        session.execute(insert(business).values(id="a"))
        assert outbox.record(session, SeatTaken(seat_id=1)) == 1
        session.commit()

    async with AsyncSession(engine) as session:
        await session.run_sync(work)

    assert len(await rows_in(engine)) == 1


async def test_flush_adds_envelope_and_context_to_every_payload(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    user, group, bus = uuid4(), uuid4(), EventBus()
    ad_hoc = DomainEvent("group_message.queued", "group_message", group, {"status": "queued"})
    typed = SeatTaken(seat_id=3)
    bus.emit(ad_hoc)
    bus.emit(typed)

    async with AsyncSession(engine) as session, session.begin():
        count = await outbox.flush(session, bus, user_id=user, request_id="req-1")

    first, second = await rows_in(engine)
    assert count == 2
    assert not bus.has_events
    assert first.payload == {
        "status": "queued",
        "event_type": "group_message.queued",
        "aggregate_type": "group_message",
        "aggregate_id": str(group),
        "timestamp": ad_hoc.occurred_at.isoformat().replace("+00:00", "Z"),
        "user_id": str(user),
        "request_id": "req-1",
    }
    assert second.payload["request_id"] == "req-1"
    assert second.metadata["correlation_id"] == "req-1"
    assert second.metadata["user_id"] == str(user)


async def test_typed_event_is_read_back_from_a_payload_with_context(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    bus, event = EventBus(), SeatTaken(seat_id=3)
    bus.emit(event)
    async with AsyncSession(engine) as session, session.begin():
        outbox.flush(session, bus, tenant="t-1")

    (envelope,) = await OutboxRepository(engine, outbox).fetch_unpublished(10)

    assert envelope.payload["tenant"] == "t-1"
    assert envelope.to_event() == event


async def test_empty_flush_writes_nothing_and_needs_no_transaction(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    async with AsyncSession(engine) as session:
        assert outbox.flush(session, EventBus(), user_id="u") == 0
        await session.commit()

    assert await rows_in(engine) == []


async def test_payload_with_fields_of_the_context_does_not_fail_the_request_and_is_kept(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    own = {"user_id": "own", "timestamp": "yesterday", "status": "same", "replaced_fields": [1]}
    bus = EventBus()
    bus.emit(ad_hoc := DomainEvent("a.b", "a", 1, own))
    bus.emit(typed := SeatTaken(seat_id=3, by="own"))

    async with AsyncSession(engine) as session, session.begin():
        outbox.flush(session, bus, user_id="u-1", status="same", by="context")

    first, second = await OutboxRepository(engine, outbox).fetch_unpublished(10)
    assert (first.payload["user_id"], first.metadata.user_id) == ("u-1", "u-1")
    assert first.payload["timestamp"] == ad_hoc.occurred_at.isoformat().replace("+00:00", "Z")
    replaced = {name: own[name] for name in ("user_id", "timestamp", "replaced_fields")}
    assert first.payload["replaced_fields"] == replaced
    assert second.payload["by"] == "context"
    assert second.to_event() == typed


async def test_metadata_comes_from_the_request_and_is_set_once(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    with event_context(correlation_id="req-1", user_id="u-1"):
        async with AsyncSession(engine) as session, session.begin():
            outbox.record(session, SeatTaken(seat_id=1))
            with event_context(trace_id="t-1"):
                outbox.record(session, SeatTaken(seat_id=2))
    async with AsyncSession(engine) as session, session.begin():
        outbox.record(session, SeatTaken(seat_id=3))

    found = [row.metadata for row in await rows_in(engine)]
    assert found == [
        {"correlation_id": "req-1", "user_id": "u-1"},
        {"correlation_id": "req-1", "user_id": "u-1", "trace_id": "t-1"},
        {},
    ]


async def test_event_recorded_by_a_handler_has_the_handled_one_as_its_cause(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    handlers = Handlers()

    @handlers.handles(SeatTaken)
    async def confirm(event: SeatTaken) -> None:
        async with AsyncSession(engine) as session, session.begin():
            outbox.record(session, DomainEvent("ticket.printed", "ticket", event.seat_id, {}))

    cause = SeatTaken(seat_id=1).to_envelope().with_user_id("u-1")
    await InMemoryEventBus(handlers).publish(cause)

    (row,) = await rows_in(engine)
    assert row.metadata == {
        "causation_id": str(cause.event_id),
        "correlation_id": str(cause.event_id),
        "user_id": "u-1",
    }


async def test_envelopes_can_be_recorded_as_they_are(engine: AsyncEngine, outbox: Outbox) -> None:
    envelope = SeatTaken(seat_id=1).to_envelope(EventMetadata(correlation_id="own"))

    with event_context(correlation_id="not this"):
        async with AsyncSession(engine) as session, session.begin():
            outbox.record(session, envelope)

    assert await OutboxRepository(engine, outbox).fetch_unpublished(1) == [envelope]


async def test_repository_stores_fetches_marks_and_deletes(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    repository = OutboxRepository(engine, outbox)
    first, second, third = (SeatTaken(seat_id=n).to_envelope() for n in range(3))

    await repository.store([first, second])
    async with AsyncSession(engine) as session, session.begin():
        await repository.store([third], session)
    async with AsyncSession(engine) as session:
        await session.begin()
        await repository.store([SeatTaken(seat_id=9).to_envelope()], session)

    assert await repository.fetch_unpublished(2) == [first, second]
    assert await repository.mark_published(first.event_id)
    assert not await repository.mark_published(first.event_id)
    assert await repository.fetch_unpublished(9) == [second, third]
    assert await repository.delete_published_before(datetime.now(UTC) - timedelta(days=1)) == 0
    assert await repository.delete_published_before(datetime.now(UTC) + timedelta(days=1)) == 1
    assert [row.id for row in await rows_in(engine)] == [second.event_id, third.event_id]


async def test_own_names_and_metadata(engine: AsyncEngine) -> None:
    names = OutboxNames(table="order", processed="user", prefix="select_")
    outbox = Outbox(OutboxTables(names, metadata=business.metadata), wake_up=False)
    async with engine.begin() as connection:
        await connection.run_sync(business.metadata.create_all)

    async with AsyncSession(engine) as session, session.begin():
        outbox.record(session, SeatTaken(seat_id=1), SeatTaken(seat_id=2))

    async with engine.connect() as connection:
        assert len((await connection.execute(select(outbox.tables.outbox))).all()) == 2
    for table in list(business.metadata.tables.values()):
        if table is not business:
            business.metadata.remove(table)


async def test_session_with_several_binds_writes_where_the_table_lives(
    engine: AsyncEngine, outbox: Outbox
) -> None:
    factory = async_sessionmaker(binds={outbox.tables.outbox: engine, business: engine})

    async with factory() as session, session.begin():
        await session.execute(insert(business).values(id="a"))
        outbox.record(session, SeatTaken(seat_id=1))

    assert len(await rows_in(engine)) == 1


def test_lane_of_an_aggregate_is_the_same_for_ever() -> None:
    assert aggregate_key("default", "order", "42") == 3015944287095698949
    assert aggregate_key("other", "order", "42") != aggregate_key("default", "order", "42")


def test_mapping_twice_changes_nothing() -> None:
    map_outbox()
    map_outbox()

    assert OutboxRecord.__mapper__.local_table.name == "outbox"  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="mapped onto outbox, not other"):
        map_outbox(OutboxTables(OutboxNames(table="other")))


def test_what_is_no_session_is_refused(outbox: Outbox) -> None:
    with pytest.raises(TypeError, match="expected a session or a connection, got sessionmaker"):
        outbox.record(sessionmaker(), SeatTaken(seat_id=1))  # type: ignore[arg-type]


def test_event_id_may_be_any_uuid() -> None:
    given = SeatTaken(seat_id=1, event_id=UUID(int=5))

    assert isinstance(EventEnvelope.from_json(given.to_envelope().to_json()).event_id, UUID)


async def test_role_that_may_only_insert_can_record_and_read_nothing(services: Services) -> None:
    database = create_database(services)
    owner = create_async_engine(database.replace("postgresql", "postgresql+asyncpg", 1))
    await create_all(owner)
    async with owner.begin() as connection:
        for statement in (
            "DROP ROLE IF EXISTS insert_only",
            "CREATE ROLE insert_only LOGIN PASSWORD 'secret'",
            "GRANT INSERT ON outbox TO insert_only",
        ):
            await connection.execute(text(statement))
    role = owner.url.set(username="insert_only", password="secret")

    for driver in ("postgresql+asyncpg", "postgresql+psycopg"):
        producer = create_async_engine(role.set(drivername=driver))
        async with AsyncSession(producer) as session, session.begin():
            Outbox().record(session, SeatTaken(seat_id=1), SeatTaken(seat_id=2))
        async with producer.connect() as connection:
            with pytest.raises(ProgrammingError, match="permission denied"):
                await connection.execute(text("SELECT id FROM outbox"))
        await producer.dispose()

    assert len(await rows_in(owner)) == 4
    async with owner.begin() as connection:
        await connection.execute(text("DROP OWNED BY insert_only"))
        await connection.execute(text("DROP ROLE insert_only"))
    await owner.dispose()


async def test_commit_is_told_with_the_types_and_a_rollback_is_not(engine: AsyncEngine) -> None:
    told: list[Signal] = []
    outbox = Outbox(wake_up=False, routes={"*": ["one", "two"]}, on_signal=told.append)

    for commits in (True, False):
        async with AsyncSession(engine) as session:
            await session.connection()
            outbox.record(session, *(DomainEvent("t.a", "t", "1", {}) for _ in range(2)))
            outbox.record(session, DomainEvent("t.b", "t", "1", {}))
            await (session.commit() if commits else session.rollback())

    assert told == [EventsRecorded(events={"t.a": 2, "t.b": 1})]

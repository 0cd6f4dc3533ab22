"""The outbox by hand, when events go to several sinks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import DomainEvent, Outbox, SqlOutboxStore
from outrider.admin import EventOutboxRepository, OutboxRepository


async def test_each_sink_has_its_own_progress(engine: AsyncEngine) -> None:
    outbox = Outbox(wake_up=False, routes={"*": ["a", "b"]})
    a, b = (OutboxRepository(engine, outbox, sink=sink) for sink in ("a", "b"))
    first, second = (DomainEvent("seat.taken", "seat", n, {}).to_envelope() for n in (1, 2))
    await a.store([first, second])

    assert await a.mark_published(first.event_id)

    assert await a.fetch_unpublished(9) == [second]
    assert await b.fetch_unpublished(9) == [first, second]
    assert await b.mark_published(first.event_id)
    assert await a.delete_published_before(datetime.now(UTC) + timedelta(days=1)) == 1
    c = outbox.tables.outbox.c
    async with engine.connect() as connection:
        left = await connection.execute(select(c.sink, c.status).order_by(c.position))
        assert left.all() == [("b", "published"), ("a", "pending"), ("b", "pending")]


async def test_repository_looks_after_the_default_sink_unless_told_otherwise(
    engine: AsyncEngine,
) -> None:
    outbox = Outbox(wake_up=False, routes={"*": "elsewhere"})
    repository = OutboxRepository(engine, outbox)
    event = DomainEvent("seat.taken", "seat", 1, {}).to_envelope()
    await repository.store([event])

    assert await repository.fetch_unpublished(9) == []
    assert not await repository.mark_published(event.event_id)


async def test_event_that_was_marked_by_hand_is_cleaned_up_like_others(
    database: AsyncEngine,
) -> None:
    outbox = Outbox(wake_up=False)
    repository: EventOutboxRepository = OutboxRepository(database, outbox)
    first, second, third = (
        DomainEvent("seat.taken", "seat", n, {}).to_envelope() for n in (1, 2, 3)
    )
    await repository.store([first, second, third])
    assert isinstance(repository, EventOutboxRepository)

    for envelope in (second, first):
        assert await repository.mark_published(envelope.event_id)
        assert not await repository.mark_published(envelope.event_id)

    c = outbox.tables.outbox.c
    query = select(c.id, c.delivery_number, c.published_at).order_by(c.delivery_number)
    async with database.connect() as connection:
        marked = (await connection.execute(query.where(c.status == "published"))).all()
    assert [(row.id, row.delivery_number) for row in marked] == [
        (second.event_id, 1),
        (first.event_id, 2),
    ]
    assert all(abs(row.published_at - datetime.now(UTC)) < timedelta(minutes=5) for row in marked)
    store = SqlOutboxStore(database)
    await store.open(lambda _: None)
    assert await store.delete_published(timedelta(days=7), 100) == 0
    assert await store.delete_published(timedelta(0), 100) == 2
    await store.close()
    assert await repository.fetch_unpublished(9) == [third]

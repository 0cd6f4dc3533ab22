"""Handling once, over any memory of what was handled."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from outrider import ConfigurationError, DatabaseUnavailable, DomainEvent, EventEnvelope
from outrider.consumer.inbox import (
    CheckThenMark,
    IdempotentHandler,
    InboxCleanup,
    MemoryProcessedEvents,
)
from outrider.consumer.scopes import ObjectScope, current_scope, use_scope
from outrider.consumer.sql_inbox import SqlInbox, SqlProcessedEvents
from outrider.ports import EventHandler, Inbox, ProcessedEventStore

EVENT = DomainEvent("session.created", "session", 1, {}).to_envelope()


class Dashboard:
    """A handler that counts its effects, and fails as often as it is told to."""

    name = "dashboard"

    def __init__(self, failures: int = 0) -> None:
        self.effects: list[UUID] = []
        self.failures = failures
        self.pause = asyncio.Event()
        self.pause.set()

    async def handle(self, envelope: EventEnvelope, /) -> None:
        await self.pause.wait()
        if self.failures:
            self.failures -= 1
            raise ValueError("no dashboard today")
        self.effects.append(envelope.event_id)


async def test_second_delivery_is_skipped() -> None:
    dashboard = Dashboard()
    handler = IdempotentHandler(dashboard, MemoryProcessedEvents())

    for _ in range(3):
        await handler.handle(EVENT)

    assert dashboard.effects == [EVENT.event_id]


async def test_failed_delivery_is_not_marked_and_takes_effect_when_it_comes_again() -> None:
    dashboard, store = Dashboard(failures=1), MemoryProcessedEvents()
    handler = IdempotentHandler(dashboard, store)

    with pytest.raises(ValueError, match="no dashboard today"):
        await handler.handle(EVENT)

    assert not await store.contains(EVENT.event_id, "dashboard")
    await handler.handle(EVENT)
    assert dashboard.effects == [EVENT.event_id]


async def test_handlers_are_remembered_apart() -> None:
    store, first, second = MemoryProcessedEvents(), Dashboard(), Dashboard()
    second.name = "another"

    for dashboard in (first, second):
        await IdempotentHandler(dashboard, store).handle(EVENT)

    assert first.effects == second.effects == [EVENT.event_id]


async def test_check_then_mark_takes_effect_twice_if_two_deliveries_come_at_once() -> None:
    """Its documented hole, which only a transaction closes."""
    dashboard = Dashboard()
    handler = IdempotentHandler(dashboard, MemoryProcessedEvents())
    dashboard.pause.clear()

    both = [asyncio.create_task(handler.handle(EVENT)) for _ in range(2)]
    await asyncio.sleep(0)
    dashboard.pause.set()
    await asyncio.gather(*both)

    assert dashboard.effects == [EVENT.event_id] * 2


async def test_check_then_mark_takes_effect_twice_after_a_crash_before_the_mark() -> None:
    """The other one."""

    class DiesBeforeTheMark(MemoryProcessedEvents):
        alive = False

        async def mark(self, event_id: UUID, handler_name: str, /) -> None:
            if self.alive:
                return await super().mark(event_id, handler_name)
            raise SystemExit

    dashboard, store = Dashboard(), DiesBeforeTheMark()
    handler = IdempotentHandler(dashboard, store)
    with pytest.raises(SystemExit):
        await handler.handle(EVENT)
    store.alive = True

    await handler.handle(EVENT)

    assert dashboard.effects == [EVENT.event_id] * 2


def test_parts_fit_the_ports() -> None:
    assert isinstance(CheckThenMark(MemoryProcessedEvents()), Inbox)
    assert isinstance(SqlInbox(), Inbox)
    assert isinstance(MemoryProcessedEvents(), ProcessedEventStore)
    assert issubclass(SqlProcessedEvents, ProcessedEventStore)
    wrapped = IdempotentHandler(Dashboard(), SqlInbox())
    assert isinstance(wrapped, EventHandler)
    assert wrapped.name == "dashboard"


async def test_sql_inbox_refuses_to_run_without_a_session() -> None:
    handler = IdempotentHandler(dashboard := Dashboard(), SqlInbox())

    with pytest.raises(ConfigurationError, match="give it sessions, or run the handler in a scope"):
        await handler.handle(EVENT)
    with use_scope(ObjectScope({})), pytest.raises(ConfigurationError, match="has no AsyncSession"):
        await handler.handle(EVENT)

    assert dashboard.effects == []


async def test_session_without_a_database_is_an_error_and_not_something_to_wait_for() -> None:
    handler = IdempotentHandler(Dashboard(), SqlInbox(AsyncSession))

    with pytest.raises(Exception, match="bind"):
        await handler.handle(EVENT)

    assert current_scope() is None


class Forgetful(MemoryProcessedEvents):
    """Counts cleanings; away for as many as it is told to."""

    def __init__(self, away: int = 0, hangs: bool = False) -> None:
        super().__init__()
        self.away, self.hangs = away, hangs
        self.cleaned = asyncio.Semaphore(0)

    async def delete_before(self, moment: datetime, /) -> int:
        self.cleaned.release()
        if self.hangs:
            await asyncio.sleep(3600)
        if self.away:
            self.away -= 1
            raise DatabaseUnavailable("away")
        return await super().delete_before(moment)


async def test_cleanup_forgets_what_is_older_than_the_retention() -> None:
    store, old, young = Forgetful(), uuid4(), uuid4()
    for event_id in (old, young):
        await store.mark(event_id, "dashboard")
    store._marks[old, "dashboard"] = datetime.now(UTC) - timedelta(days=31)

    assert await InboxCleanup(store).delete_old_marks() == 1

    assert await store.contains(young, "dashboard")
    assert not await store.contains(old, "dashboard")


async def test_cleanup_survives_an_outage_of_the_database() -> None:
    store = Forgetful(away=3)

    async with InboxCleanup(store, every=timedelta(milliseconds=1)), asyncio.timeout(30):
        for _ in range(6):
            await store.cleaned.acquire()


async def test_cleanup_stops_promptly_in_the_middle_of_its_work() -> None:
    store = Forgetful(hangs=True)
    cleanup = InboxCleanup(store)
    await cleanup.start()
    await store.cleaned.acquire()

    async with asyncio.timeout(30):
        await cleanup.stop()
        await cleanup.stop()


async def test_cleanup_can_be_run_and_stopped_from_elsewhere() -> None:
    store = Forgetful()
    cleanup = InboxCleanup(store)
    running = asyncio.create_task(cleanup.run())
    await store.cleaned.acquire()

    async with asyncio.timeout(30):
        await cleanup.stop()
        await running


async def test_cleanup_dies_of_what_waiting_cannot_cure() -> None:
    class Broken(MemoryProcessedEvents):
        async def delete_before(self, _moment: datetime, /) -> int:
            raise ConfigurationError("no table")

    with pytest.raises(ConfigurationError, match="no table"):
        await InboxCleanup(Broken()).run()


def test_marks_are_kept_longer_than_events_can_come_again() -> None:
    month = timedelta(days=30)

    with pytest.raises(ConfigurationError) as caught:
        InboxCleanup(
            MemoryProcessedEvents(), retention=month, longest_redelivery=month, every=timedelta(0)
        )

    assert "retention (30 days, 0:00:00) must be longer than" in str(caught.value)
    assert "every must be above 0" in str(caught.value)

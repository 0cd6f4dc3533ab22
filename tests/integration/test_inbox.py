"""Effectively once: effect and mark commit together, on every driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from outrider import ConfigurationError, DomainEvent, EventEnvelope, Handlers, Outbox, create_all
from outrider.admin import OutboxRepository
from outrider.consumer import sql_inbox
from outrider.consumer.handler_runner import HandlerRunner
from outrider.consumer.inbox import CheckThenMark, IdempotentHandler
from outrider.consumer.scopes import ObjectScope, Scope, current_scope, use_scope
from outrider.consumer.sql_inbox import SqlInbox, SqlProcessedEvents
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.store.schema.tables import OutboxTables
from tests.support.databases import ASYNC_DRIVERS, close, engine_with_outbox, transactional_sqlite
from tests.support.inbox_shop import (
    Customer,
    Invoice,
    OrderPlaced,
    Shop,
    Work,
    handler_of,
    invoice,
    placed,
)
from tests.support.until import until

outbox = Outbox(wake_up=False)


@pytest.fixture(params=[*ASYNC_DRIVERS, "sqlite+aiosqlite, begun by us"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    driver, _, begun = request.param.partition(",")
    engine = await engine_with_outbox(driver, request, tmp_path)
    if begun:
        transactional_sqlite(engine)
        await engine.dispose()
    made = Shop(engine)
    await made.open()
    yield made
    await close(engine)


async def test_second_delivery_is_skipped(shop: Shop) -> None:
    event = placed()

    for _ in range(3):
        assert await shop.deliver(event) is None

    assert await shop.state() == (1, 1)


async def test_ids_of_other_producers_are_remembered_by_source_and_text(shop: Shop) -> None:
    attributes = {**to_attributes(placed(), "/stock"), "id": "test-id-123"}

    for source in ("/stock", "/stock", "/shop", "/stock"):
        received = from_attributes({**attributes, "source": source}, b"{}")
        async with shop.inbox.once(received, "mail"):
            pass

    assert await shop.marks() == 2


async def test_handlers_are_remembered_apart(shop: Shop) -> None:
    event = placed()
    for name in ("mail", "print"):
        async with shop.inbox.once(event, name) as first:
            assert first

    assert await shop.marks() == 2


async def test_handler_that_fails_half_way_takes_no_effect_and_then_one(shop: Shop) -> None:
    event = placed()

    async def half_way(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        raise ValueError

    failure = await shop.deliver(event, half_way)

    assert failure is not None
    assert failure.verdict == "count"
    assert await shop.state() == (0, 0)
    assert await shop.deliver(event) is None
    assert await shop.state() == (1, 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_second_of_two_deliveries_at_once_waits_and_there_is_one_effect(
    shop: Shop, fails: bool
) -> None:
    event, entered, go = placed(), asyncio.Event(), asyncio.Event()
    calls = 0

    async def slow(event: OrderPlaced, session: AsyncSession) -> None:
        nonlocal calls
        calls += 1
        await invoice(event, session)
        if calls == 1:
            entered.set()
            await go.wait()
            if fails:
                raise ValueError

    first = asyncio.create_task(shop.deliver(event, slow))
    await entered.wait()
    second = asyncio.create_task(shop.deliver(event, slow))
    await until(shop.blocked)
    assert calls == 1, "the second runs while the first does"
    go.set()

    assert ((await first) is not None) == fails
    assert await second is None
    assert await shop.state() == (1, 1)
    assert calls == (2 if fails else 1)


async def test_twenty_deliveries_at_once_take_effect_once(shop: Shop) -> None:
    event = placed()

    async def until_done() -> None:
        while failure := await shop.deliver(event):
            assert failure.verdict == "wait", failure.error

    await asyncio.gather(*(until_done() for _ in range(20)))

    assert await shop.state() == (1, 1)


async def test_sync_handler_takes_effect_once(shop: Shop) -> None:
    event = placed()

    for _ in range(2):
        assert not await shop.deliver(
            event, lambda event, session: session.add(Invoice(order_id=event.order_id))
        )

    assert await shop.state() == (1, 1)


@pytest.mark.fault("E15")
async def test_handler_that_commits_itself_takes_effect_once(shop: Shop) -> None:
    event = placed()

    async def commits(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        await session.commit()
        await session.scalar(select(Invoice.id))  # a look at what was written does no harm

    for _ in range(2):
        assert await shop.deliver(event, commits) is None

    assert await shop.state() == (1, 1)


async def test_handler_that_raises_after_its_own_commit_takes_effect_once(shop: Shop) -> None:
    event = placed()

    async def commits(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        await session.commit()
        raise ValueError

    assert await shop.deliver(event, commits) is not None
    assert await shop.state() == (1, 1)

    assert await shop.deliver(event, commits) is None
    assert await shop.state() == (1, 1)


async def rolls_back(event: OrderPlaced, session: AsyncSession) -> None:
    await invoice(event, session)
    await session.rollback()


async def rolls_back_and_goes_on(event: OrderPlaced, session: AsyncSession) -> None:
    await rolls_back(event, session)
    await invoice(event, session)


async def closes(event: OrderPlaced, session: AsyncSession) -> None:
    await invoice(event, session)
    await session.close()


async def rolls_back_after_a_savepoint(event: OrderPlaced, session: AsyncSession) -> None:
    async with session.begin_nested():
        await invoice(event, session)
    await session.rollback()


async def swallows_a_failed_flush(event: OrderPlaced, session: AsyncSession) -> None:
    session.add_all([Customer(email="canary"), Invoice(order_id=event.order_id)])
    await session.flush()
    session.expunge_all()
    session.add(Customer(email="canary"))
    with pytest.raises(IntegrityError):
        await session.flush()


@pytest.mark.fault("E15")
@pytest.mark.parametrize(
    "work",
    [
        rolls_back,
        rolls_back_and_goes_on,
        closes,
        rolls_back_after_a_savepoint,
        swallows_a_failed_flush,
    ],
    ids=lambda work: work.__name__,
)
async def test_handler_that_undoes_its_mark_is_found_out_and_comes_again(
    shop: Shop, work: Work
) -> None:
    event = placed()

    failure = await shop.deliver(event, work)

    assert failure is not None
    assert "rolled back or closed the session it was given" in failure.reason
    assert await shop.state() == (0, 0)
    assert await shop.deliver(event) is None
    assert await shop.state() == (1, 1)


async def test_savepoint_that_is_rolled_back_is_the_handlers_business(shop: Shop) -> None:
    event = placed()

    async def tries(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        savepoint = await session.begin_nested()
        await invoice(event, session)
        await savepoint.rollback()

    for _ in range(2):
        assert await shop.deliver(event, tries) is None

    assert await shop.state() == (1, 1)


async def test_events_that_a_handler_records_commit_with_the_mark_and_name_their_cause(
    shop: Shop,
) -> None:
    event, fails = placed().with_correlation_id("r-1"), True

    def records(event: OrderPlaced, session: AsyncSession) -> None:
        outbox.record(session, DomainEvent("invoice.sent", "invoice", event.order_id, {}))
        if fails:
            raise ValueError

    repository = OutboxRepository(shop.engine, outbox)

    assert await shop.deliver(event, records) is not None
    assert await repository.fetch_unpublished(9) == []
    fails = False
    for _ in range(2):
        assert await shop.deliver(event, records) is None

    (sent,) = await repository.fetch_unpublished(9)
    assert sent.metadata.causation_id == str(event.event_id)
    assert sent.metadata.correlation_id == "r-1"
    assert await shop.marks() == 1


class FromScope:
    """Scopes as a container makes them: a session, and something else."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession]) -> None:
        self._sessions = sessions
        self.given: list[AsyncSession] = []

    @asynccontextmanager
    async def __call__(self, _envelope: EventEnvelope) -> AsyncIterator[Scope]:
        async with self._sessions() as session:
            self.given.append(session)
            yield ObjectScope({AsyncSession: session, str: "an object of the scope"})
            assert not session.in_transaction()


async def test_session_of_the_scope_holds_mark_and_effect(shop: Shop) -> None:
    event, scope, used = placed(), FromScope(shop.sessions), []

    async def fails(event: OrderPlaced, session: AsyncSession) -> None:
        used.append(session)
        await invoice(event, session)
        raise ValueError

    assert await shop.deliver(event, fails, inbox=SqlInbox(), scope=scope) is not None
    assert await shop.state() == (0, 0)
    for _ in range(2):
        assert await shop.deliver(event, inbox=SqlInbox(), scope=scope) is None

    assert await shop.state() == (1, 1)
    assert used == scope.given[:1]


async def test_session_that_has_begun_already_is_refused(shop: Shop) -> None:
    handler = IdempotentHandler(handler_of(invoice), SqlInbox())

    async with shop.sessions() as session, session.begin():
        with use_scope(ObjectScope({AsyncSession: session})):
            with pytest.raises(ConfigurationError, match="has begun a transaction already"):
                await handler.handle(placed())
            assert session.in_transaction(), "what others began is theirs to end"

    assert await shop.state() == (0, 0)


async def test_sessions_of_the_inbox_come_before_that_of_the_scope(shop: Shop) -> None:
    scope, used = FromScope(shop.sessions), []

    async def looks(_event: OrderPlaced, session: AsyncSession) -> None:
        opened = current_scope()
        assert opened is not None
        used.append((session, await opened.get(str)))

    assert await shop.deliver(placed(), looks, scope=scope) is None

    assert used[0][0] is not scope.given[0]
    assert used[0][1] == "an object of the scope"


async def test_one_session_serves_many_events(shop: Shop) -> None:
    handler = IdempotentHandler(handler_of(invoice), SqlInbox())

    async with shop.sessions() as session:
        with use_scope(ObjectScope({AsyncSession: session})):
            for order in range(3):
                event = placed(order)
                await handler.handle(event)
                await handler.handle(event)

    assert await shop.state() == (3, 3)


async def test_wrapped_handler_gets_its_session_without_any_scope(shop: Shop) -> None:
    handlers, event = Handlers(), placed()

    @handlers.handles(OrderPlaced)
    class SendInvoice:
        async def handle(self, event: OrderPlaced, session: AsyncSession) -> None:
            await invoice(event, session)

    (handler,) = handlers.of(OrderPlaced.event_type)
    once = IdempotentHandler(handler, shop.inbox)
    for _ in range(2):
        await once.handle(event)

    assert await shop.state() == (1, 1)
    assert current_scope() is None


@pytest.mark.parametrize("shop", ASYNC_DRIVERS, indirect=True)
async def test_autocommit_is_refused_before_anything_is_marked(shop: Shop) -> None:
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    inbox = SqlInbox(async_sessionmaker(engine))

    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        await IdempotentHandler(handler_of(invoice), inbox).handle(placed())

    assert await shop.state() == (0, 0)


async def test_sqlite_driver_that_begins_nothing_is_refused(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    shop = Shop(create_async_engine(url, connect_args={"isolation_level": None}))
    await create_all(shop.engine)
    await shop.open()

    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        await IdempotentHandler(handler_of(invoice), shop.inbox).handle(placed())

    assert await shop.state() == (0, 0)
    await shop.engine.dispose()


async def test_missing_table_is_a_configuration_error(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        await connection.run_sync(OutboxTables().processed.drop)
    store = SqlProcessedEvents(shop.engine)

    for inbox in (shop.inbox, CheckThenMark(store)):
        with pytest.raises(ConfigurationError, match="run `outrider schema apply`"):
            await IdempotentHandler(handler_of(invoice), inbox).handle(placed())
    with pytest.raises(ConfigurationError, match="run `outrider schema apply`"):
        await store.delete_before(datetime.now(UTC))

    assert await shop.invoices() == 0


async def test_constraint_that_a_handler_breaks_is_its_own_error_without_values(
    shop: Shop,
) -> None:
    def same_customer(_event: OrderPlaced, session: AsyncSession) -> None:
        session.add(Customer(email="canary@example.com"))

    assert await shop.deliver(placed(1), same_customer) is None
    failure = await shop.deliver(placed(2), same_customer)

    assert failure is not None
    assert isinstance(failure.error, IntegrityError)
    assert failure.verdict == "count"
    assert ": IntegrityError" in failure.reason
    assert "SQLSTATE 23505" in failure.reason or "SQLITE_CONSTRAINT_PRIMARYKEY" in failure.reason
    assert "<" not in failure.reason.partition(" at ")[2], "the code that SQLAlchemy generates"
    assert "canary" not in failure.reason
    assert await shop.marks() == 1


async def test_signals_of_a_failing_handler_hold_no_values(shop: Shop) -> None:
    said: list[object] = []

    async def breaks(_event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(text("SELECT :canary FROM nowhere"), {"canary": "canary"})

    for inbox in (shop.inbox, SqlInbox(async_sessionmaker(shop.engine))):
        calls = HandlerRunner(inbox=inbox, on_signal=said.append)
        failures = await calls.deliver(placed(), [handler_of(breaks)])
        assert [failure.verdict for failure in failures] == ["count"]

    assert len(said) == 2
    assert "canary" not in repr(said)


async def test_store_remembers_each_handler_once(shop: Shop) -> None:
    store, event_id = SqlProcessedEvents(shop.engine), uuid4()

    for _ in range(2):
        await store.mark(event_id, "mail")

    assert await store.contains(event_id, "mail")
    assert not await store.contains(event_id, "print")
    assert not await store.contains(uuid4(), "mail")
    assert await shop.marks() == 1


async def test_store_forgets_old_marks_in_small_steps(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_inbox, "_DELETE_STEP_ROWS", 4)
    store, table = SqlProcessedEvents(shop.engine), OutboxTables().processed
    now = datetime.now(UTC)
    ids = [uuid4() for _ in range(12)]
    for event_id in ids:
        await store.mark(event_id, "mail")
    async with shop.engine.begin() as connection:
        for age, event_id in enumerate(ids):
            aged = update(table).where(table.c.event_id == event_id)
            # Two and two of the same age, so that a step ends between equals.
            await connection.execute(aged.values(processed_at=now - timedelta(days=age // 2)))

    forgotten = await store.delete_before(now - timedelta(days=1))

    assert forgotten == 8
    assert [await store.contains(event_id, "mail") for event_id in ids] == [True] * 4 + [False] * 8

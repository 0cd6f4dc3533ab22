"""Savepoints and failures: an event exists if and only if all that encloses it was committed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Connection,
    Engine,
    ForeignKey,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outrider import ConfigurationError, DomainEvent, InvalidEvent, RaisesEvents, map_outbox
from outrider.recording.outbox import Outbox
from outrider.testing.services import Services

TAKEN = -1
"""The id of an order that is there from the start: adding it again violates a constraint."""

on_postgres = pytest.mark.parametrize(
    "shop", ["postgresql+asyncpg", "postgresql+psycopg"], indirect=True
)
as_session_and_connection = pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
map_outbox()  # so that every row of a session has its record in `session.new`


class Base(DeclarativeBase):
    pass


class Order(RaisesEvents, Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(default=0)
    follows: Mapped[int | None] = mapped_column(
        ForeignKey("orders.id", deferrable=True, initially="DEFERRED")
    )


class Invoice(Order):
    """Raises its event when it is written."""


@event.listens_for(Invoice, "before_insert")
def raise_when_written(_mapper: object, _connection: object, invoice: Invoice) -> None:
    invoice.raise_event(placed(invoice.id))


def placed(order: int, **payload: Any) -> DomainEvent:
    return DomainEvent("order.placed", "order", order, payload)


def prepare(engine: Engine) -> Engine:
    """SQLite has savepoints, and checks references, when it is asked to."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def leave_begin_to_us(connection: Any, _: object) -> None:
            connection.isolation_level = None
            connection.execute("PRAGMA foreign_keys=ON")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN")

    return engine


def clear(connection: Connection) -> None:
    connection.execute(delete(Order))
    connection.execute(text("DELETE FROM outbox"))
    connection.execute(insert(Order).values(id=TAKEN))


@pytest.fixture(scope="module")
def postgres(services: Services) -> str:
    """One database for all: many fresh ones cost minutes of fsync."""
    database = f"savepoints_{uuid4().hex}"
    services.postgres.psql(f"create database {database}")
    return services.postgres.url.rpartition("/")[0] + f"/{database}"


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    driver: str = request.param
    if driver.startswith("sqlite"):
        return f"{driver}:///{folder}/shop.db"
    postgres: str = request.getfixturevalue("postgres")
    return postgres.replace("postgresql", driver, 1)


def open_shop(connection: Connection) -> None:
    Base.metadata.create_all(connection)
    Outbox().tables.metadata.create_all(connection)
    clear(connection)


@pytest.fixture(params=["postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """A database with one order and an empty outbox, for async drivers."""
    engine = create_async_engine(url_of(request, tmp_path))
    prepare(engine.sync_engine)
    async with engine.begin() as connection:
        await connection.run_sync(open_shop)
    yield engine
    await engine.dispose()


@pytest.fixture(params=["postgresql+psycopg", "sqlite+pysqlite"])
def plain_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The same, for drivers that block."""
    engine = prepare(create_engine(url_of(request, tmp_path)))
    with engine.begin() as connection:
        open_shop(connection)
    yield engine
    engine.dispose()


class Contents:
    """What is in the database: orders by their id, events in the order of their positions."""

    ORDERS = text("SELECT id FROM orders WHERE id <> :taken ORDER BY id").bindparams(taken=TAKEN)
    EVENTS = text("SELECT aggregate_id FROM outbox ORDER BY position")

    def __init__(self, connection: Connection) -> None:
        self.orders = list(connection.scalars(self.ORDERS))
        self.events = [int(order) for order in connection.scalars(self.EVENTS)]

    @classmethod
    async def of(cls, engine: AsyncEngine) -> Contents:
        async with engine.connect() as connection:
            return await connection.run_sync(cls)


Target = AsyncSession | AsyncConnection
End = Literal["kept", "rolled back", "raised", "failed"]
Scope = tuple[list[Any], End]
RECORD = "record"

ends = st.sampled_from(["kept", "kept", "kept", "rolled back", "raised", "failed"])
savepoints = st.recursive(
    st.just(RECORD),
    lambda inner: st.tuples(st.lists(inner, min_size=1, max_size=4), ends),
    max_leaves=20,
)
scopes = st.tuples(st.lists(savepoints, max_size=5), ends)
random_trees = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Undone(Exception):
    """What the application raises to leave a block."""


UNDOES = (Undone, IntegrityError)


def surviving(scope: Scope, numbers: Iterator[int]) -> list[int]:
    """The events that must exist; all are numbered in the order they are recorded."""
    steps, end = scope
    kept: list[int] = []
    for step in steps:
        kept += [next(numbers)] if step == RECORD else surviving(step, numbers)
    return kept if end == "kept" else []


async def perform(target: Target, outbox: Outbox, scope: Scope, numbers: Iterator[int]) -> None:
    """Do what a scope says, up to the moment when it is to be kept."""
    steps, end = scope
    for step in steps:
        if step == RECORD:
            number = next(numbers)
            await target.execute(insert(Order).values(id=number))
            outbox.record(target, placed(number))
            continue
        with suppress(*UNDOES):
            async with target.begin_nested() as savepoint:
                await perform(target, outbox, step, numbers)
                if step[1] == "rolled back":
                    await savepoint.rollback()
    if end == "raised":
        raise Undone
    if end == "failed" and isinstance(target, AsyncSession):
        target.add(Order(id=TAKEN))
        await target.flush()
    elif end == "failed":
        await target.execute(insert(Order).values(id=TAKEN))


@pytest.mark.fault("D9")
@as_session_and_connection
@random_trees
@given(scope=scopes)
async def test_events_of_surviving_savepoints_exist_in_the_order_recorded(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target], scope: Scope
) -> None:
    # given
    async with shop.begin() as connection:
        await connection.run_sync(clear)

    # when
    async with kind(shop) as target:
        with suppress(*UNDOES):
            async with target.begin() as transaction:
                await perform(target, outbox, scope, count())
                if scope[1] == "rolled back":
                    await transaction.rollback()

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == surviving(scope, count())


def perform_plainly(
    target: Session | Connection, outbox: Outbox, scope: Scope, numbers: Iterator[int]
) -> None:
    steps, end = scope
    for step in steps:
        if step == RECORD:
            number = next(numbers)
            target.execute(insert(Order).values(id=number))
            outbox.record(target, placed(number))
            continue
        with suppress(*UNDOES), target.begin_nested() as savepoint:
            perform_plainly(target, outbox, step, numbers)
            if step[1] == "rolled back":
                savepoint.rollback()
    if end == "raised":
        raise Undone
    if end == "failed" and isinstance(target, Session):
        target.add(Order(id=TAKEN))
        target.flush()
    elif end == "failed":
        target.execute(insert(Order).values(id=TAKEN))


@pytest.mark.parametrize("kind", [Session, Connection])
@random_trees
@given(scope=scopes)
def test_events_of_surviving_savepoints_exist_with_blocking_drivers_too(
    plain_shop: Engine, outbox: Outbox, kind: type[Session | Connection], scope: Scope
) -> None:
    # given
    with plain_shop.begin() as connection:
        clear(connection)

    # when
    with kind(plain_shop) as target, suppress(*UNDOES), target.begin() as transaction:
        perform_plainly(target, outbox, scope, count())
        if scope[1] == "rolled back":
            transaction.rollback()

    # then
    with plain_shop.connect() as connection:
        contents = Contents(connection)
    assert contents.events == contents.orders == surviving(scope, count())


async def roll_back(target: Target) -> None:
    await target.rollback()


async def close(target: Target) -> None:
    await target.close()


async def leave_nested_block(target: Target) -> None:
    async with target.begin_nested():
        raise Undone


@pytest.mark.fault("D9")
@as_session_and_connection
@pytest.mark.parametrize("leave", [roll_back, close, leave_nested_block])
async def test_nothing_is_stored_without_a_commit(
    shop: AsyncEngine,
    outbox: Outbox,
    kind: type[Target],
    leave: Callable[[Target], Awaitable[None]],
) -> None:
    # when
    with suppress(Undone):
        async with kind(shop) as target:
            await target.execute(insert(Order).values(id=1))
            outbox.record(target, placed(1))
            await leave(target)

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == []


@as_session_and_connection
async def test_what_was_rolled_back_does_not_come_back_with_the_next_transaction(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target]
) -> None:
    async with kind(shop) as target:
        # given
        await target.execute(insert(Order).values(id=1))
        outbox.record(target, placed(1))
        await target.rollback()

        # when
        await target.execute(insert(Order).values(id=2))
        outbox.record(target, placed(2))
        await target.commit()

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == [2]


async def test_session_records_normally_after_a_flush_that_failed_in_its_commit(
    shop: AsyncEngine, outbox: Outbox
) -> None:
    async with AsyncSession(shop) as session:
        # given
        session.add(Order(id=TAKEN))
        outbox.record(session, placed(1))
        with pytest.raises(IntegrityError):
            await session.commit()
        await session.rollback()

        # when
        session.add(Order(id=2))
        outbox.record(session, placed(2))
        await session.commit()

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == [2]


async def test_session_records_normally_after_a_commit_that_the_database_refused(
    shop: AsyncEngine, outbox: Outbox
) -> None:
    async with AsyncSession(shop) as session:
        # given
        session.add(Order(id=1, follows=404))
        await session.flush()
        outbox.record(session, placed(1))
        with pytest.raises(IntegrityError):
            await session.commit()
        await session.rollback()

        # when
        session.add(Order(id=2))
        outbox.record(session, placed(2))
        await session.commit()

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == [2]


@pytest.mark.parametrize("caught", ["inside", "outside"])
async def test_savepoint_undone_by_a_failed_flush_takes_its_events_along(
    shop: AsyncEngine, outbox: Outbox, caught: Literal["inside", "outside"]
) -> None:
    # when
    async with AsyncSession(shop) as session, session.begin():
        session.add(Order(id=1))
        outbox.record(session, placed(1))
        with suppress(IntegrityError):
            async with session.begin_nested():
                session.add(Order(id=2))
                outbox.record(session, placed(2))
                session.add(Order(id=TAKEN))
                with suppress(IntegrityError) if caught == "inside" else nullcontext():
                    await session.flush()

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == [1]


async def test_connection_whose_outbox_write_failed_commits_nothing_of_it_later(
    shop: AsyncEngine, outbox: Outbox
) -> None:
    # given
    known = placed(1)
    async with shop.begin() as connection:
        await connection.execute(insert(Order).values(id=1))
        outbox.record(connection, known)

    # when
    async with shop.connect() as connection:
        transaction = await connection.begin()
        await connection.execute(insert(Order).values(id=2))
        outbox.record(connection, known)
        with pytest.raises(IntegrityError):
            await transaction.commit()
        await transaction.rollback()
        async with connection.begin():
            await connection.execute(insert(Order).values(id=3))
            outbox.record(connection, placed(3))

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == [1, 3]


class Unit:
    """A unit of work that its owner repeats until the database accepts it."""

    def __init__(self, engine: AsyncEngine, level: str, meeting: asyncio.Barrier) -> None:
        self.engine = engine.execution_options(isolation_level=level)
        self.meeting, self.failures = meeting, list[str]()

    async def until_committed(self, work: Callable[[AsyncSession], Awaitable[None]]) -> None:
        while True:
            try:
                async with AsyncSession(self.engine) as session, session.begin():
                    await work(session)
                return
            except DBAPIError as error:
                self.failures.append(error.orig.sqlstate)  # type: ignore[union-attr]

    async def meet(self) -> None:
        """Both have come this far; the second time nobody waits any more."""
        if not self.failures:
            await self.meeting.wait()


@pytest.mark.fault("D8")
@on_postgres
@pytest.mark.parametrize(
    ("level", "reads", "sqlstate"),
    [
        ("REPEATABLE READ", "own", "40001"),
        ("SERIALIZABLE", "all", "40001"),
        ("READ COMMITTED", "locks", "40P01"),
    ],
    ids=["overtaken", "write skew", "deadlock"],
)
async def test_unit_that_is_retried_after_a_conflict_leaves_one_event(
    shop: AsyncEngine, outbox: Outbox, level: str, reads: str, sqlstate: str
) -> None:
    # given
    async with shop.begin() as connection:
        await connection.execute(insert(Order).values([{"id": 1}, {"id": 2}]))
    meeting = asyncio.Barrier(2)

    async def unit(number: int, other: int) -> list[str]:
        unit = Unit(shop, level, meeting)
        changed = 1 if reads == "own" else number

        async def work(session: AsyncSession) -> None:
            outbox.record(session, placed(number))
            await session.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
            if reads == "locks":
                await session.execute(update(Order).where(Order.id == other).values(amount=1))
            else:
                await session.execute(select(Order))
            await unit.meet()
            await session.execute(update(Order).where(Order.id == changed).values(amount=number))

        await unit.until_committed(work)
        return unit.failures

    # when
    failures = await asyncio.gather(unit(1, 2), unit(2, 1))

    # then
    assert {failure for unit in failures for failure in unit} == {sqlstate}
    assert sorted((await Contents.of(shop)).events) == [1, 2]


@pytest.mark.parametrize(
    ("inner", "outer", "stored"),
    [("commit", "commit", [1]), ("commit", "rollback", []), ("rollback", "commit", [])],
)
async def test_session_inside_a_savepoint_of_an_outer_transaction_shares_its_fate(
    shop: AsyncEngine, outbox: Outbox, inner: str, outer: str, stored: list[int]
) -> None:
    # given
    async with shop.connect() as connection:
        transaction = await connection.begin()

        # when
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            session.add(Order(id=1))
            outbox.record(session, placed(1))
            await getattr(session, inner)()
        await getattr(transaction, outer)()

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == stored


@as_session_and_connection
async def test_event_recorded_again_in_its_transaction_is_stored_once(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target]
) -> None:
    # given
    once, undone = placed(1), placed(2)

    # when
    async with kind(shop) as target, target.begin():
        assert outbox.record(target, once, once) == 1
        async with target.begin_nested() as savepoint:
            assert outbox.record(target, once) == 0
            assert outbox.record(target, undone) == 1
            await savepoint.rollback()
        assert outbox.record(target, undone) == 1

    # then
    assert (await Contents.of(shop)).events == [1, 2]


def same_id_other_contents(known: DomainEvent) -> DomainEvent:
    return DomainEvent("order.placed", "order", 1, {"other": True}, event_id=known.event_id)


def not_a_number(_: DomainEvent) -> DomainEvent:
    return placed(1, ratio=float("nan"))


def naive_time(_: DomainEvent) -> DomainEvent:
    return placed(1, at=datetime(2024, 5, 1))


@as_session_and_connection
@pytest.mark.parametrize("bad", [same_id_other_contents, not_a_number, naive_time])
async def test_bad_event_is_refused_and_the_rest_of_the_transaction_is_committed(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target], bad: Callable[..., DomainEvent]
) -> None:
    # when
    async with kind(shop) as target, target.begin():
        await target.execute(insert(Order).values(id=1))
        outbox.record(target, good := placed(1))
        with pytest.raises(InvalidEvent, match="order.placed"):
            outbox.record(target, bad(good))

    # then
    contents = await Contents.of(shop)
    assert contents.events == contents.orders == [1]


@as_session_and_connection
async def test_recording_outside_a_transaction_is_refused(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target]
) -> None:
    async with kind(shop) as target:
        # when
        with pytest.raises(ConfigurationError, match="transaction"):
            outbox.record(target, placed(1))
        async with target.begin():
            await target.execute(select(Order))

        # then
        with pytest.raises(ConfigurationError, match="transaction"):
            outbox.record(target, placed(1))


@as_session_and_connection
async def test_recording_on_an_autocommit_engine_is_refused(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target]
) -> None:
    # given
    engine = shop.execution_options(isolation_level="AUTOCOMMIT")

    async with kind(engine) as target:
        await target.execute(select(Order))

        # when
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            outbox.record(target, placed(1))

    # then
    assert (await Contents.of(shop)).events == []


async def test_recording_on_an_autocommit_connection_is_refused(
    shop: AsyncEngine, outbox: Outbox
) -> None:
    # given
    async with shop.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(select(Order))

        # when
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            outbox.record(connection, placed(1))

    # then
    assert (await Contents.of(shop)).events == []


async def test_session_that_switched_to_autocommit_is_refused_before_its_commit_ends(
    shop: AsyncEngine, outbox: Outbox
) -> None:
    # when
    async with AsyncSession(shop) as session:
        await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        outbox.record(session, placed(1))
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            await session.commit()

    # then
    assert (await Contents.of(shop)).events == []


@pytest.mark.fault("Z5")
@as_session_and_connection
async def test_thousands_of_events_in_one_transaction_are_all_there_in_order(
    shop: AsyncEngine, outbox: Outbox, kind: type[Target]
) -> None:
    # when
    async with kind(shop) as target, target.begin():
        outbox.record(target, *map(placed, range(2500)))
        for number in range(2500, 5000):
            outbox.record(target, placed(number))

    # then
    assert (await Contents.of(shop)).events == list(range(5000))


@pytest.fixture
async def sessions(shop: AsyncEngine, outbox: Outbox) -> async_sessionmaker[AsyncSession]:
    """Makes sessions that collect what aggregates raise; two orders are there."""
    async with shop.begin() as connection:
        await connection.execute(insert(Order).values([{"id": 1}, {"id": 2}]))
    return async_sessionmaker(shop, info=outbox.collecting)


async def test_what_aggregates_raised_is_recorded_at_the_commit(
    shop: AsyncEngine, sessions: async_sessionmaker[AsyncSession]
) -> None:
    # when
    async with sessions() as session, session.begin():
        (old := await session.get_one(Order, 1)).raise_event(placed(1))
        session.add(new := Order(id=3))
        new.raise_event(placed(3))
        old.amount = 7
        await session.flush()
        new.raise_event(placed(30))

    # then
    assert (await Contents.of(shop)).events == [1, 3, 30]


async def test_what_a_deleted_aggregate_raised_is_recorded(
    shop: AsyncEngine, sessions: async_sessionmaker[AsyncSession]
) -> None:
    # when
    async with sessions() as session, session.begin():
        order = await session.get_one(Order, 1)
        order.raise_event(placed(1))
        await session.delete(order)
        await session.flush()

    # then
    contents = await Contents.of(shop)
    assert contents.events == [1]
    assert contents.orders == [2]


async def test_what_was_raised_in_a_savepoint_that_is_rolled_back_is_gone(
    shop: AsyncEngine, sessions: async_sessionmaker[AsyncSession]
) -> None:
    # when
    async with sessions() as session, session.begin():
        order = await session.get_one(Order, 1)
        order.raise_event(placed(1))
        async with session.begin_nested() as savepoint:
            order.raise_event(placed(10))
            order.amount = 7
            await session.flush()
            order.raise_event(placed(11))
            await savepoint.rollback()
        order.raise_event(placed(12))

    # then
    assert (await Contents.of(shop)).events == [1, 12]


async def test_what_was_raised_in_a_transaction_that_is_rolled_back_is_gone(
    shop: AsyncEngine, sessions: async_sessionmaker[AsyncSession]
) -> None:
    async with sessions() as session:
        # given
        order = await session.get_one(Order, 1)
        order.raise_event(placed(1))
        await session.rollback()

        # when
        await session.refresh(order)
        order.raise_event(placed(2))
        await session.commit()

    # then
    assert (await Contents.of(shop)).events == [2]


async def test_aggregate_added_in_a_rolled_back_savepoint_and_again_later_has_no_old_events(
    shop: AsyncEngine, sessions: async_sessionmaker[AsyncSession]
) -> None:
    # given
    order = Order(id=3)

    # when
    async with sessions() as session, session.begin():
        async with session.begin_nested() as savepoint:
            session.add(order)
            order.raise_event(placed(3))
            await savepoint.rollback()
        session.add(order)
        order.raise_event(placed(30))

    # then
    assert (await Contents.of(shop)).events == [30]


async def test_what_an_unchanged_aggregate_raised_is_recorded_though_nobody_holds_it(
    shop: AsyncEngine, sessions: async_sessionmaker[AsyncSession]
) -> None:
    # when
    async with sessions() as session, session.begin():
        (await session.get_one(Order, 1)).raise_event(placed(1))
        gc.collect()

    # then
    assert (await Contents.of(shop)).events == [1]


@pytest.mark.parametrize("moment", ["before_flush", "after_flush", "before_commit"])
def test_event_recorded_by_a_hook_of_the_application_is_stored(
    plain_shop: Engine, outbox: Outbox, moment: str
) -> None:
    # given
    sessions = sessionmaker(plain_shop)
    event.listen(sessions, moment, lambda session, *_: outbox.record(session, placed(1)))

    # when
    with sessions() as session, session.begin():
        session.add(Order(id=1))

    # then
    with plain_shop.connect() as connection:
        contents = Contents(connection)
    assert contents.events == contents.orders == [1]


def test_event_raised_by_an_aggregate_while_it_is_flushed_is_stored(
    plain_shop: Engine, outbox: Outbox
) -> None:
    # given
    sessions = sessionmaker(plain_shop, info=outbox.collecting)

    # when
    with sessions() as session, session.begin():
        session.add(Invoice(id=1))

    # then
    with plain_shop.connect() as connection:
        contents = Contents(connection)
    assert contents.events == contents.orders == [1]

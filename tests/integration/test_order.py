"""Order: events of one aggregate are numbered in the order in which the aggregate changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, find, given, note, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, make_url, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outrider import DomainEvent
from outrider.recording.outbox import Outbox
from outrider.recording.rows import insert, row_of
from outrider.testing.services import Services

EXAMPLES = 1000 if os.environ.get("OUTRIDER_FULL") else 40

outbox = Outbox(wake_up=False)
Target = AsyncSession | AsyncConnection
Record = Callable[[Target, DomainEvent], Awaitable[None]]


async def record_with_outbox(target: Target, event: DomainEvent) -> None:
    outbox.record(target, event)


async def record_at_once(target: Target, event: DomainEvent) -> None:
    """The naive way: the row is inserted, and so numbered, when the event is recorded."""

    def write(connection: Connection) -> None:
        insert(connection, outbox.tables.names, [row_of(event.to_envelope())])

    connection = target if isinstance(target, AsyncConnection) else await target.connection()
    await connection.run_sync(write)


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]


# Who made which version is written by the database itself, in the transaction that made it.
HISTORY = """
CREATE TABLE history (story text PRIMARY KEY, version integer UNIQUE);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history VALUES (current_setting('test.story'), NEW.version);
    RETURN NULL;
END $$;
CREATE TRIGGER remember AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION remember();
"""
AFRESH = """
DELETE FROM outbox; DELETE FROM history; DELETE FROM account; INSERT INTO account VALUES (1, 0)
"""
BLOCKED = "SELECT cardinality(pg_blocking_pids(:pid)) > 0"

Savepoint = Literal["none", "released", "rolled back"]
Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Story:
    """What one transaction does, from its beginning to its end."""

    early: tuple[Savepoint, ...] = ()
    """Events recorded before the account is touched, each in such a savepoint."""
    tries: bool = False
    """Whether a change and its event are first made in a savepoint that is rolled back."""
    change: Literal["update", "autoflush", "at commit", "core"] = "update"
    change_in: Literal["none", "released"] = "none"
    late: tuple[Savepoint, ...] = ()
    end: Literal["commit", "rollback", "close"] = "commit"

    @property
    def surviving(self) -> list[int]:
        """The numbers of the events that must exist."""
        if self.end != "commit":
            return []
        savepoints = (*self.early, *self.late)
        return [number for number, kind in enumerate(savepoints) if kind != "rolled back"]


class Actor:
    """Tells one story, step by step, on a connection of its own."""

    def __init__(self, name: str, story: Story, engine: AsyncEngine, record: Record) -> None:
        self.name, self.story, self.engine, self._record = name, story, engine, record
        self.pid = 0
        self.target: Target
        self.task: asyncio.Task[None] | None = None
        self.steps = self._steps()

    def _steps(self) -> list[Step]:
        story, steps = self.story, [self._begin]
        for number, savepoint in enumerate(story.early):
            steps.append(lambda n=number, s=savepoint: self._event(n, s))
        if story.tries:
            steps += [self._try, self._give_up]
        steps.append(self._change)
        for number, savepoint in enumerate(story.late, len(story.early)):
            steps.append(lambda n=number, s=savepoint: self._event(n, s))
        return [*steps, self._end]

    async def _begin(self) -> None:
        core = self.story.change == "core"
        self.target = self.engine.connect() if core else AsyncSession(self.engine)
        if isinstance(self.target, AsyncConnection):
            await self.target.start()
        await self.target.begin()
        first = text("SELECT set_config('test.story', :name, true), pg_backend_pid()")
        self.pid = (await self.target.execute(first, {"name": self.name})).one()[1]

    async def _event(self, number: int, savepoint: Savepoint) -> None:
        event = DomainEvent("account.changed", "account", 1, {"by": self.name, "number": number})
        async with self._in_savepoint(savepoint):
            await self._record(self.target, event)

    @asynccontextmanager
    async def _in_savepoint(self, kind: Savepoint) -> AsyncIterator[None]:
        if kind == "none":
            yield
            return
        async with self.target.begin_nested() as savepoint:
            yield
            if kind == "rolled back":
                await savepoint.rollback()

    async def _try(self) -> None:
        self.attempt = await self.target.begin_nested()
        await self.target.execute(update(Account).values(version=Account.version + 1))
        await self._event(-1, "none")

    async def _give_up(self) -> None:
        await self.attempt.rollback()

    async def _change(self) -> None:
        async with self._in_savepoint(self.story.change_in):
            if self.story.change in ("update", "core"):
                change = update(Account).values(version=Account.version + 1)
                await self.target.execute(change.returning(Account.version))
                return
            assert isinstance(self.target, AsyncSession)
            account = await self.target.get_one(Account, 1)
            account.version = Account.version + 1  # type: ignore[assignment]
            if self.story.change == "autoflush":
                await self.target.scalar(select(Account.version))

    async def _end(self) -> None:
        try:
            if self.story.end == "commit":
                await self.target.commit()
            elif self.story.end == "rollback":
                await self.target.rollback()
        finally:
            await self.target.close()

    def go_on(self) -> None:
        """Begin the next step, unless the last one still waits for a lock."""
        if self.task is None and self.steps:
            self.task = asyncio.ensure_future(self.steps.pop(0)())

    async def settle(self, look: AsyncConnection) -> bool:
        """Whether the step is done, or waits for somebody who will not move by himself."""
        if self.task is None:
            return True
        await asyncio.wait({self.task}, timeout=0.002)
        if not self.task.done():
            return bool(self.pid and await look.scalar(text(BLOCKED), {"pid": self.pid}))
        self.task.result()
        self.task = None
        return True


@dataclass(frozen=True)
class Outcome:
    told: list[tuple[str, int]]
    """By whom the events are and their numbers, in the order of their positions."""
    versions: dict[str, int]
    """Which version of the account each transaction made."""

    @property
    def in_order(self) -> bool:
        order = [(self.versions.get(name, 0), number) for name, number in self.told]
        return order == sorted(order)


async def perform(
    engine: AsyncEngine, stories: list[Story], schedule: list[int], record: Record
) -> Outcome:
    """Let the transactions take turns as the schedule says, then each to its end."""
    async with engine.begin() as connection:
        for statement in AFRESH.split(";"):
            await connection.execute(text(statement))
    actors = [Actor(f"t{n}", story, engine, record) for n, story in enumerate(stories)]
    async with engine.connect() as look:
        await look.execution_options(isolation_level="AUTOCOMMIT")
        for turn in schedule:
            await take_turn(actors[turn % len(actors)], actors, look)
        while any(actor.steps or actor.task for actor in actors):
            for actor in actors:
                await take_turn(actor, actors, look)
        told = await look.execute(
            text("SELECT payload->>'by', (payload->>'number')::int FROM outbox ORDER BY position")
        )
        history = await look.execute(text("SELECT story, version FROM history"))
        return Outcome([tuple(row) for row in told], {row.story: row.version for row in history})


async def take_turn(actor: Actor, actors: list[Actor], look: AsyncConnection) -> None:
    actor.go_on()
    while not all([await each.settle(look) for each in actors]):
        pass


savepoints = st.sampled_from(["none", "released", "rolled back"])
some_events = st.lists(savepoints, max_size=2).map(tuple)
a_story = st.builds(
    Story,
    early=some_events,
    tries=st.booleans(),
    change=st.sampled_from(["update", "autoflush", "at commit", "core"]),
    change_in=st.sampled_from(["none", "released"]),
    late=some_events,
    end=st.sampled_from(["commit", "commit", "commit", "rollback", "close"]),
)
all_stories = st.lists(a_story, min_size=2, max_size=5)
schedules = st.lists(st.integers(0, 4), min_size=4, max_size=30)

A_EARLY = Story(early=("none",))
B_LATE = Story(late=("none",))
TRAP = [0, 0, 1, 1, 1, 1, 0, 0]
"""A begins and records; B begins, changes, records and commits; A changes and commits."""


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def engine(services: Services, loop: asyncio.Runner) -> Iterator[AsyncEngine]:
    database = f"order_{uuid4().hex}"
    services.postgres.psql(f"create database {database}")
    url = make_url(services.postgres.url).set(drivername="postgresql+asyncpg", database=database)
    engine = create_async_engine(url, pool_size=6)

    async def create() -> None:
        async with engine.begin() as connection:
            await connection.run_sync(outbox.tables.metadata.create_all)
            await connection.run_sync(Base.metadata.create_all)
            raw = await connection.get_raw_connection()
            await raw.driver_connection.execute(HISTORY)  # type: ignore[union-attr]

    loop.run(create())
    yield engine
    loop.run(engine.dispose())


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stories=all_stories, schedule=schedules)
def test_positions_follow_the_order_in_which_the_aggregate_changed(
    loop: asyncio.Runner, engine: AsyncEngine, stories: list[Story], schedule: list[int]
) -> None:
    # when
    outcome = loop.run(perform(engine, stories, schedule, record_with_outbox))
    note(f"{outcome}")

    # then
    surviving = {(f"t{n}", e) for n, story in enumerate(stories) for e in story.surviving}
    committed = {f"t{n}" for n, story in enumerate(stories) if story.end == "commit"}
    assert outcome.in_order
    assert sorted(outcome.told) == sorted(surviving)
    assert set(outcome.versions) == committed
    assert sorted(outcome.versions.values()) == list(range(1, len(committed) + 1))


@pytest.mark.parametrize("change", ["update", "autoflush", "at commit", "core"])
def test_event_recorded_first_comes_last_when_its_aggregate_changed_last(
    loop: asyncio.Runner, engine: AsyncEngine, change: Literal["update", "core"]
) -> None:
    # given
    stories = [Story(early=("none",), change=change), B_LATE]

    # when
    outcome = loop.run(perform(engine, stories, TRAP, record_with_outbox))

    # then
    assert outcome.versions == {"t1": 1, "t0": 2}
    assert outcome.told == [("t1", 0), ("t0", 0)]


def test_change_that_waits_for_the_row_is_numbered_after_the_one_it_waited_for(
    loop: asyncio.Runner, engine: AsyncEngine
) -> None:
    # given
    stories = [A_EARLY, Story(early=("none",), change="at commit")]

    # when
    b_waits_in_its_commit = [0, 1, 1, 1, 0, 0, 1, 0]
    outcome = loop.run(perform(engine, stories, b_waits_in_its_commit, record_with_outbox))

    # then
    assert outcome.versions == {"t0": 1, "t1": 2}
    assert outcome.told == [("t0", 0), ("t1", 0)]


def test_numbering_at_record_time_is_caught_by_the_trap(
    loop: asyncio.Runner, engine: AsyncEngine
) -> None:
    # when
    outcome = loop.run(perform(engine, [A_EARLY, B_LATE], TRAP, record_at_once))

    # then
    assert outcome.told == [("t0", 0), ("t1", 0)]
    assert outcome.versions == {"t1": 1, "t0": 2}
    assert not outcome.in_order


def test_numbering_at_record_time_is_caught_by_generated_schedules(
    loop: asyncio.Runner, engine: AsyncEngine
) -> None:
    # given
    def out_of_order(example: tuple[list[Story], list[int]]) -> bool:
        stories, schedule = example
        return not loop.run(perform(engine, stories, schedule, record_at_once)).in_order

    # when
    stories, schedule = find(
        st.tuples(all_stories, schedules),
        out_of_order,
        settings=settings(
            max_examples=500, deadline=None, phases=[Phase.generate], derandomize=True
        ),
    )

    # then
    assert len(stories) > 1
    assert schedule

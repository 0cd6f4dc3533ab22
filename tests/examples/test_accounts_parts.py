"""The parts of the accounts example: use cases, what the container gives, what ends when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from dishka import AsyncContainer, Provider, Scope, provide
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.accounts import account, core
from examples.accounts.account import (
    Account,
    AccountCreated,
    AccountRole,
    AccountUnitOfWork,
    EmailTaken,
    EventDispatcher,
    SignUpHandler,
)
from examples.accounts.app import create_app
from examples.accounts.core import CoreUnitOfWork
from examples.accounts.persistence import SqlAccountUnitOfWork, SqlCoreUnitOfWork, map_tables
from examples.accounts.settings import Settings
from outrider import (
    ConfigurationError,
    DomainEvent,
    InProcessPublisher,
    OutboxEventDispatcher,
    OutboxRecord,
    SqlInbox,
)
from outrider.integrations.dishka import dishka_scope
from tests.support.databases import DIALECTS, Database, fresh
from tests.support.examples.accounts_client import count, event_of, events_in, person
from tests.support.examples.serving import MAX_WAIT_S, served

REFUSE_EVENTS = {
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'not today'); END",
    ),
}


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        yield database


def settings_of(database: Database) -> Settings:
    return Settings.read({"DATABASE_URL": database.url})


@asynccontextmanager
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield http


async def until_published(database: Database, *account_ids: str) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while {event_of(database, one).status for one in account_ids} != {"published"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def giving(kind: type[Any], made_by: type[Any]) -> Provider:
    provider = Provider(scope=Scope.REQUEST)
    provider.provide(made_by, provides=kind)
    return provider


class MemoryUnitOfWork:
    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self.committed: list[Account] = []

    async def add(self, account: Account) -> None:
        if any(other.email == account.email for other in self.committed):
            raise EmailTaken
        self.accounts.append(account)

    async def get(self, account_id: UUID) -> Account | None:
        return next((a for a in self.committed if a.id == account_id), None)

    async def commit(self) -> None:
        self.committed = list(self.accounts)


class MemoryDispatcher:
    def __init__(self, unit_of_work: MemoryUnitOfWork) -> None:
        self.events: list[DomainEvent] = []
        self.committed_before: list[Account] = []
        self._unit_of_work = unit_of_work

    async def dispatch(self, events: Sequence[DomainEvent]) -> None:
        self.committed_before = list(self._unit_of_work.committed)
        self.events += events


async def test_use_case_needs_no_database_and_dispatches_before_its_commit() -> None:
    # given
    unit_of_work = MemoryUnitOfWork()
    dispatcher = MemoryDispatcher(unit_of_work)

    # when
    made = await SignUpHandler(unit_of_work, dispatcher).handle("ada@example.org", "Ada")

    # then
    assert unit_of_work.committed == [made]
    assert dispatcher.committed_before == []
    (event,) = dispatcher.events
    assert isinstance(event, AccountCreated)
    assert event.account_id == made.id
    facts = (event.email, event.display_name, event.role)
    assert facts == ("ada@example.org", "Ada", AccountRole.USER)


async def test_use_case_tells_nobody_of_an_account_that_was_refused() -> None:
    # given
    unit_of_work = MemoryUnitOfWork()
    dispatcher = MemoryDispatcher(unit_of_work)
    sign_up = SignUpHandler(unit_of_work, dispatcher)
    await sign_up.handle("ada@example.org", "Ada")

    # when
    with pytest.raises(EmailTaken):
        await sign_up.handle("ada@example.org", "Another Ada")

    # then
    assert len(dispatcher.events) == len(unit_of_work.committed) == 1


def test_relay_polls_every_thirty_seconds_unless_told_otherwise() -> None:
    usual = Settings.read({"OUTBOX_POLL_INTERVAL": ""})
    other = Settings.read({"OUTBOX_POLL_INTERVAL": "7", "DATABASE_URL": "sqlite:///other.db"})

    assert usual.relay.poll_interval == timedelta(seconds=30)
    assert usual.database_url == "sqlite:///accounts.db"
    assert other.relay.poll_interval == timedelta(seconds=7)
    assert other.database_url == "sqlite:///other.db"
    with pytest.raises(ConfigurationError, match="OUTBOX_POLL_INTERVAL.*OUTBOX_MAX_RETRIES"):
        Settings.read({"OUTBOX_POLL_INTERVAL": "soon", "OUTBOX_MAX_RETRIES": "few"})


async def test_mapping_at_every_start_maps_once(database: Database) -> None:
    # when: two applications in one process, and a person in a hurry
    for _ in range(2):
        map_tables()
        async with client(create_app(settings_of(database))) as http:
            answer = await http.get("/failed-events")

        # then
        assert answer.json() == []
    assert OutboxRecord.__mapper__.local_table.name == "outbox"  # type: ignore[attr-defined]


async def test_request_gets_the_outbox_as_its_dispatcher_over_its_own_session(
    database: Database,
) -> None:
    # given
    app = create_app(settings_of(database))
    async with client(app):
        container: AsyncContainer = app.state.dishka_container
        for commits in (False, True):
            async with container() as request:
                # when
                unit_of_work = await request.get(AccountUnitOfWork)
                dispatcher = await request.get(EventDispatcher)
                await unit_of_work.add(made := Account(uuid4(), "ada@a.org", AccountRole.USER))
                await dispatcher.dispatch([created(made)])
                if commits:
                    await (await request.get(AsyncSession)).commit()

            # then
            assert isinstance(dispatcher, OutboxEventDispatcher)
            assert (count(database, "accounts"), len(events_in(database))) == (commits, commits)
    assert event_of(database, str(made.id)).type == "AccountCreated"


class FailsToCommit(SqlAccountUnitOfWork):
    async def commit(self) -> None:
        raise RuntimeError("after the event")


async def test_sign_up_that_fails_after_its_event_leaves_neither_account_nor_event(
    database: Database,
) -> None:
    # given
    app = create_app(settings_of(database), giving(AccountUnitOfWork, FailsToCommit))

    # when
    async with client(app) as http:
        answer = await http.post("/accounts", json=person())

    # then
    assert answer.status_code == 500
    assert (count(database, "accounts"), events_in(database)) == (0, [])


async def test_sign_up_whose_event_cannot_be_stored_leaves_no_account(database: Database) -> None:
    async with client(create_app(settings_of(database))) as http:
        # given
        await asyncio.to_thread(database.run, *REFUSE_EVENTS[database.dialect])

        # when
        answer = await http.post("/accounts", json=person())

        # then
        assert answer.status_code == 500
        assert (count(database, "accounts"), events_in(database)) == (0, [])


class CountedSessions(Provider):
    """As the application's own, and remembers each."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[AsyncSession] = []
        self.open = 0

    @provide(scope=Scope.REQUEST)
    async def session(self, engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            self.opened.append(session)
            self.open += 1
            yield session
        self.open -= 1


async def test_each_handler_has_a_scope_with_a_session_and_a_unit_of_work_of_its_own(
    database: Database,
) -> None:
    # given
    used: list[AsyncSession] = []

    class Noted(SqlCoreUnitOfWork):
        async def commit(self) -> None:
            used.append(self._session)
            await super().commit()

    sessions = CountedSessions()
    app = create_app(settings_of(database), sessions, giving(CoreUnitOfWork, Noted))

    # when
    async with client(app) as http:
        ids = [(await http.post("/accounts", json=person())).json()["id"] for _ in range(2)]
        await until_published(database, *ids)

    # then: for each account one of the request and one of each handler, all closed again
    assert len(set(map(id, sessions.opened))) == 6
    assert len(set(map(id, used))) == 2
    assert sessions.open == 0


async def test_event_that_is_delivered_twice_at_the_same_moment_leaves_one_profile(
    database: Database,
) -> None:
    # given
    app = create_app(settings_of(database))
    made = Account(uuid4(), "ada@example.org", AccountRole.USER)
    envelope = created(made).to_envelope()
    async with client(app) as http:
        publishers = [
            InProcessPublisher(
                [*account.handlers, *core.handlers],
                scope=dishka_scope(app.state.dishka_container),
                inbox=SqlInbox(),
            )
            for _ in range(4)
        ]

        # when
        await asyncio.gather(*(publisher.publish(envelope) for publisher in publishers))

        # then
        profile = await http.get(f"/profiles/{made.id}")
        assert profile.json() == {"account_id": str(made.id), "display_name": "Ada"}
        assert (count(database, "profiles"), count(database, "processed_events")) == (1, 2)


async def test_event_of_an_unknown_type_is_not_marked_as_published_but_tried_again_and_told(
    database: Database,
) -> None:
    # given: a type that no class of the application has, as after a renamed class
    app = create_app(settings_of(database))
    async with client(app):
        engine = await app.state.dishka_container.get(AsyncEngine)
        async with AsyncSession(engine) as session, session.begin():
            OutboxEventDispatcher(session).dispatch([DomainEvent("AccountMade", "account", 7, {})])

        # when
        async with asyncio.timeout(MAX_WAIT_S):
            while not event_of(database, "7").retry_count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    # then
    event = event_of(database, "7")
    assert event.status == "pending"
    assert "no class with its type has been imported" in str(event.last_error)


class Happened(logging.Handler):
    """What the application's parts do, and what the relay says, in one line of time."""

    def __init__(self) -> None:
        super().__init__()
        self.so_far: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "stopped" in record.getMessage():
            self.so_far.append("relay stopped")


class WatchedSessions(Provider):
    """Sessions that need something of the container's own, which tells when it is closed."""

    def __init__(self, happened: Happened) -> None:
        super().__init__()
        self._happened = happened.so_far

    @provide(scope=Scope.APP)
    async def lasting(self) -> AsyncIterator[Happened]:
        yield Happened()
        self._happened.append("container closed")

    @provide(scope=Scope.REQUEST)
    async def session(self, engine: AsyncEngine, _: Happened) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            yield session


@pytest.fixture
def happened() -> Iterator[Happened]:
    happened, relay_log = Happened(), logging.getLogger("outrider.relay")
    level = relay_log.level
    relay_log.setLevel(logging.INFO)
    relay_log.addHandler(happened)
    yield happened
    relay_log.removeHandler(happened)
    relay_log.setLevel(level)


async def test_stop_while_a_handler_works_leaves_the_work_for_the_next_start(
    database: Database, happened: Happened
) -> None:
    # given
    working = asyncio.Event()

    class NeverReady(SqlCoreUnitOfWork):
        async def commit(self) -> None:
            working.set()
            try:
                await asyncio.Event().wait()
            finally:
                happened.so_far.append("handler cancelled")

    settings = settings_of(database)
    hasty = replace(settings, relay=replace(settings.relay, grace=timedelta(milliseconds=100)))
    replacements = WatchedSessions(happened), giving(CoreUnitOfWork, NeverReady)

    # when
    async with client(create_app(hasty, *replacements)) as http:
        account_id = (await http.post("/accounts", json=person())).json()["id"]
        async with asyncio.timeout(MAX_WAIT_S):
            await working.wait()

    # then: the relay is over before the container, and neither has left half of anything
    assert happened.so_far == ["handler cancelled", "relay stopped", "container closed"]
    event = event_of(database, account_id)
    assert (event.status, event.retry_count) == ("pending", 0)
    assert (count(database, "profiles"), count(database, "processed_events")) == (0, 1)

    # and the next start does what is left
    async with client(create_app(settings)) as http:
        await until_published(database, account_id)
        assert (await http.get(f"/profiles/{account_id}")).status_code == 200
    assert (count(database, "profiles"), count(database, "processed_events")) == (1, 2)


def created(made: Account) -> AccountCreated:
    return AccountCreated(account_id=made.id, email=made.email, display_name="Ada", role=made.role)

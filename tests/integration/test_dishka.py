"""Dishka: use cases know a protocol, handlers get a scope of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID, uuid4

import pytest
from dishka import AsyncContainer, Provider, Scope, make_async_container, provide
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outrider import (
    DomainEvent,
    EventBus,
    EventMetadata,
    Handlers,
    InProcessPublisher,
    Outbox,
    OutboxEventDispatcher,
    SqlInbox,
)
from outrider.integrations.dishka import OutriderProvider, dishka_scope


@dataclass(frozen=True, kw_only=True)
class AccountOpened(DomainEvent, type="account.opened", aggregate="account"):
    account_id: UUID


class EventDispatcher(Protocol):
    """As use cases know it."""

    def dispatch(self, events: list[AccountOpened]) -> object: ...


class Profiles:
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def add(self, name: str) -> None:
        await self.session.execute(text("INSERT INTO business VALUES (:id)"), {"id": name})


class Application(Provider):
    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__()
        self._engine = engine

    @provide(scope=Scope.REQUEST)
    async def session(self) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(self._engine) as session:
            yield session

    profiles = provide(Profiles, scope=Scope.REQUEST)


@pytest.fixture
async def container(database: AsyncEngine) -> AsyncIterator[AsyncContainer]:
    provider = OutriderProvider(Outbox(wake_up=False), dispatcher=EventDispatcher)
    made = make_async_container(Application(database), provider)
    yield made
    await made.close()


async def count(engine: AsyncEngine, table: str) -> int:
    async with engine.connect() as connection:
        return await connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0  # noqa: S608


async def test_use_case_gets_a_dispatcher_over_the_session_of_its_request(
    container: AsyncContainer, database: AsyncEngine
) -> None:
    for commits in (True, False):
        async with container() as request:
            session = await request.get(AsyncSession)
            dispatcher = await request.get(EventDispatcher)
            await (await request.get(Profiles)).add(f"p-{commits}")
            dispatcher.dispatch([AccountOpened(account_id=uuid4())])
            if commits:
                await session.commit()

    assert isinstance(dispatcher, OutboxEventDispatcher)
    assert (await count(database, "business"), await count(database, "outbox")) == (1, 1)


async def test_one_bus_for_a_request_and_another_for_the_next(container: AsyncContainer) -> None:
    async with container() as first, container() as second:
        buses = [await first.get(EventBus), await first.get(EventBus), await second.get(EventBus)]

    assert buses[0] is buses[1]
    assert buses[0] is not buses[2]


handlers = Handlers()
seen: list[tuple[str | None, int]] = []


@handlers.handles(AccountOpened)
async def create_profile(
    event: AccountOpened, profiles: Profiles, session: AsyncSession, metadata: EventMetadata
) -> None:
    assert profiles.session is session
    seen.append((metadata.correlation_id, id(session)))
    await profiles.add(str(event.account_id))


@handlers.handles(AccountOpened)
async def log(event: AccountOpened, session: AsyncSession) -> None:
    seen.append(("log", id(session)))


async def test_handlers_run_in_scopes_of_their_own_and_take_effect_once(
    container: AsyncContainer, database: AsyncEngine
) -> None:
    seen.clear()
    envelope = AccountOpened(account_id=uuid4()).to_envelope().with_correlation_id("c-1")
    publisher = InProcessPublisher(handlers, scope=dishka_scope(container), inbox=SqlInbox())

    await publisher.publish(envelope)
    await publisher.publish(envelope)

    assert [who for who, _ in seen] == ["c-1", "log"]
    assert len({session for _, session in seen}) == 2
    assert await count(database, "business") == 1
    assert await count(database, "processed_events") == 2

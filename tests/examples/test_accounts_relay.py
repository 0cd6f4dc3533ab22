"""The relay of the accounts example: when it looks, what it takes first, what a failure stops."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from examples.accounts.account import AccountCreated, AccountRole
from examples.accounts.persistence import create_tables, open_engine
from examples.accounts.settings import Settings
from outrider import (
    Handlers,
    InMemoryEventBus,
    InProcessPublisher,
    OutboxEventDispatcher,
    OutboxRelay,
    SqlOutboxStore,
)
from outrider.outcomes import ClaimedEvent
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.databases import DIALECTS, fresh
from tests.support.until import until


def created(account_id: UUID) -> AccountCreated:
    facts = {"email": "ada@example.org", "display_name": "Ada", "role": AccountRole.USER}
    return AccountCreated(account_id=account_id, **facts)


class LeapingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for nothing: the time of its loop leaps to the next timer instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout else timeout)
        self.now += timeout if timeout and not ready else 0
        return ready  # type: ignore[no-any-return]


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


class DeafStore(MemoryOutboxStore):
    """Hears of no commit, so that only looking finds an event; knows when it was looked."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at: list[float] = []

    async def open(self, wake: Callable[[str], None], /) -> str:
        return "memory"

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        self.looked_at.append(asyncio.get_running_loop().time())
        return await super().claim(lanes, limit)


def test_relay_waits_its_interval_of_thirty_seconds_and_then_looks_again() -> None:
    store, bus = DeafStore(), InMemoryEventBus()

    async def live() -> float:
        clock, config = asyncio.get_running_loop().time, replace(Settings.read({}).relay, loops=1)
        async with OutboxRelay(store, bus, config):
            # when: nothing happens for ten minutes, then an event of which nobody tells
            await asyncio.sleep(600)
            store.record(created(uuid4()))
            recorded = clock()
            async with asyncio.timeout(60):
                while not bus.event_count:  # noqa: ASYNC110 - its time costs nothing
                    await asyncio.sleep(0.1)
            return clock() - recorded

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        late = runner.run(live())

    # then: up to a fifth sooner, so that many relays do not look at the same moment
    waits = [later - earlier for earlier, later in pairwise(store.looked_at) if later < 600]
    assert 20 <= len(waits) <= 26
    assert all(24 <= wait <= 30 for wait in waits)
    assert late <= 30.1


@pytest.mark.parametrize("end", ["stopped", "cancelled"])
def test_relay_that_sleeps_ends_at_once(end: str) -> None:
    async def live() -> float:
        clock, relay = asyncio.get_running_loop().time, OutboxRelay(DeafStore(), InMemoryEventBus())
        running = asyncio.create_task(relay.run())
        await asyncio.sleep(60)
        asked = clock()
        if end == "stopped":
            await relay.stop()
        else:
            running.cancel()
        await asyncio.wait({running})
        assert running.cancelled() == (end == "cancelled")
        return clock() - asked

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        assert runner.run(live()) == 0


async def test_failing_handler_is_logged_and_stops_neither_other_handlers_nor_other_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given: of two accounts, whose events make one batch, the first is bad luck for one handler
    mallory, ada, handlers, seen = uuid4(), uuid4(), Handlers(), list[UUID]()

    @handlers.handles(AccountCreated)
    async def refuse_mallory(event: AccountCreated) -> None:
        if event.account_id == mallory:
            raise ValueError

    @handlers.handles(AccountCreated)
    async def note(event: AccountCreated) -> None:
        seen.append(event.account_id)

    store = MemoryOutboxStore()
    bad, good = store.record(created(mallory), created(ada))

    # when
    config = replace(Settings.read({}).relay, loops=1)
    async with OutboxRelay(store, InProcessPublisher(handlers), config):
        await until(lambda: bad.retry_count > 0)

    # then
    assert set(seen) == {mallory, ada}
    assert (bad.status, good.status, good.retry_count) == ("pending", "published", 0)
    told = [r.getMessage() for r in caplog.records if r.name == "outrider.relay"]
    assert [line for line in told if "event refused" in line and str(bad.event.id) in line]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_relay_takes_the_oldest_event_first_whichever_account_it_is_of(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with fresh(dialect, request, tmp_path) as database:
        # given
        engine, bus = open_engine(database.url), InMemoryEventBus()
        await create_tables(engine)
        accounts = [uuid4() for _ in range(20)]
        for account_id in accounts:
            async with AsyncSession(engine) as session, session.begin():
                OutboxEventDispatcher(session).dispatch([created(account_id)])

        # when
        config = replace(Settings.read({}).relay, loops=1, batch_size=3)
        async with OutboxRelay(SqlOutboxStore(engine), bus, config):
            await until(lambda: bus.event_count == len(accounts))
        await engine.dispose()

    # then
    assert [UUID(each.aggregate_id) for each in bus.published_events] == accounts

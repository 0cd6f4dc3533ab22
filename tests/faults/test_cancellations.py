"""Calls that are cancelled at any moment: no connection, lock or task outlives them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import cast
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import QueuePool, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from outrider import (
    ConsumerConfig,
    DomainEvent,
    EventConsumer,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlInbox,
    create_all,
    open_engine,
)
from outrider.brokers import PublishFailed
from outrider.consumer.handler_runner import HandlerRunner
from outrider.ports import EventPublisher
from outrider.store.postgres.store import PostgresOutboxStore
from outrider.testing.conformance.events import events
from outrider.testing.faulty_proxy import FaultyProxy
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.proxies import Proxies, link_to
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL, SEED
from tests.support.processes.effects_app import EFFECTS, WriteEffect, prepare_broker
from tests.support.processes.linked_relay import publisher_of
from tests.support.until import until

CANCELS = 10_000 if FULL else 300
AT_ONCE = 5
BROKERS = ("rabbitmq", "nats", "redis")
RUNS_FOR = 0.1
OPEN = """
SELECT count(*), count(*) FILTER (WHERE state <> 'idle'),
    (SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
     WHERE datname = current_database() AND pid <> pg_backend_pid())
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

pytestmark = pytest.mark.faults
Call = Callable[[], Awaitable[object]]


class Calls:
    """One of each kind that an application makes."""

    def __init__(self, engine: AsyncEngine, publishers: dict[str, EventPublisher]) -> None:
        self._engine, self._broker, self._outbox = engine, MemoryBroker(), Outbox(wake_up=False)
        self._inbox = SqlInbox(async_sessionmaker(engine))
        self.store = PostgresOutboxStore(engine)
        self.kinds: dict[str, Call] = {
            "record": self._record,
            "store": self._store,
            "relay": self._relay,
            "handle": self._handle,
            "consume": self._consume,
        }
        for name, publisher in publishers.items():
            self.kinds[name] = lambda publisher=publisher: publish(publisher)

    def _event(self) -> DomainEvent:
        return DomainEvent("thing.changed", "thing", random.randrange(50), {"n": 1})

    async def _record(self) -> None:
        async with AsyncSession(self._engine) as session, session.begin():
            await session.execute(text("SELECT 1"))
            self._outbox.record(session, self._event(), self._event())
            await session.execute(text("SELECT 1"))

    async def _store(self) -> None:
        relay = uuid4()
        lease = await self.store.lease(relay, "cancelled", timedelta(seconds=1))
        batch = await self.store.claim(lease.lanes, 10)
        await self.store.adjust_crash_count(relay, lease.lanes, batch)
        await self.store.settle(relay, lease.lanes, batch, [], [])
        await self.store.release(relay, None)

    async def _relay(self) -> None:
        quick = RelayConfig(poll_interval=timedelta(milliseconds=10), lease=timedelta(seconds=1))
        relay = OutboxRelay(PostgresOutboxStore(self._engine), self._broker.publisher(), quick)
        async with asyncio.timeout(RUNS_FOR):
            await relay.run()

    async def _handle(self) -> None:
        calls = HandlerRunner(inbox=self._inbox)
        assert not await calls.deliver(self._event().to_envelope(), [WriteEffect()])

    async def _consume(self) -> None:
        source = self._broker.source(uuid4().hex)
        for _ in range(20):
            await self._broker.publisher().publish(self._event().to_envelope())
        del self._broker.messages[:-40]
        handlers, few = [("thing.changed", WriteEffect())], ConsumerConfig(concurrency=2)
        consumer = EventConsumer(source, handlers, few, inbox=self._inbox)
        async with asyncio.timeout(RUNS_FOR):
            await consumer.run()


async def publish(publisher: EventPublisher) -> None:
    with suppress(PublishFailed):  # another call's cancellation takes the connection with it
        await publisher.publish_all(events(5, "a", "b"))


class Cancels:
    """Cancels each call after a random part of the time that it takes."""

    def __init__(self, calls: Calls, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._calls, self._chance = calls, chance
        self._took: dict[str, float] = {}

    async def measure(self) -> None:
        clock = asyncio.get_running_loop().time
        for kind, call in self._calls.kinds.items():
            for _ in range(2):  # the first one connects
                began = clock()
                with suppress(TimeoutError):
                    await call()
                self._took[kind] = min(RUNS_FOR, clock() - began)

    async def go_on_until(self, cancelled: int) -> None:
        while self.counts.total() < cancelled:
            await self._cancel_one()

    async def _cancel_one(self) -> None:
        kind = self._chance.choice([*self._took])
        task = asyncio.ensure_future(self._calls.kinds[kind]())
        await asyncio.sleep(self._chance.uniform(0, self._took[kind]))
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            self.counts[kind] += 1
        elif not isinstance(error := task.exception(), TimeoutError | None):
            raise error


@pytest.fixture
async def links(services: Services) -> AsyncIterator[Proxies]:
    """One to the database and one to each broker, since they know who has not hung up."""
    urls = {kind: getattr(services, kind).url for kind in BROKERS}
    async with AsyncExitStack() as stack:
        found = {"database": await stack.enter_async_context(link_to(services.postgres.url))}
        for kind, url in urls.items():
            found[kind] = await stack.enter_async_context(link_to(url))
        yield found


async def brokers(services: Services, links: Proxies) -> dict[str, EventPublisher]:
    made = {}
    for kind in BROKERS:
        url, name = getattr(services, kind).url, f"net{uuid4().hex[:12]}"
        await prepare_broker(url, name)
        made[kind] = publisher_of(links[kind].url(url), name)
    return made


async def is_quiet(engine: AsyncEngine, watcher: asyncpg.Connection, link: FaultyProxy) -> bool:
    """Whether there are none but idle connections of the pool; some of those may be closed."""
    pool = cast("QueuePool", engine.pool)
    connections, busy, locks = await watcher.fetchrow(OPEN)
    left = (pool.checkedout(), link.connections - connections, busy, locks)
    return left == (0, 0, 0, 0) and connections <= pool.checkedin()


@pytest.mark.fault("E16", "B10", line="S-7")
async def test_calls_cancelled_at_random_leave_nothing_behind(
    services: Services, links: Proxies, scoreboard: Scoreboard
) -> None:
    # given
    url = create_database(services)
    engine = open_engine(links["database"].url(url), pool_size=2 * AT_ONCE)
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.execute(text(EFFECTS))
    watcher, publishers = await asyncpg.connect(url), await brokers(services, links)
    tasks = asyncio.all_tasks()
    calls = Calls(engine, publishers)
    await calls.store.open(lambda _: None)
    cancels = Cancels(calls, random.Random(SEED))
    await cancels.measure()

    # when
    await asyncio.gather(*(cancels.go_on_until(CANCELS) for _ in range(AT_ONCE)))
    await calls.store.close()

    # then
    print(f"OUTRIDER_SEED={SEED}: {cancels.counts.total()} cancelled: {dict(cancels.counts)}")

    await until(lambda: is_quiet(engine, watcher, links["database"]), "only the pool is left")
    for publisher in publishers.values():
        await publisher.close()
    await engine.dispose()
    await watcher.close()
    await until(lambda: not any(link.connections for link in links.values()), "links are free")
    carried = {task for task in asyncio.all_tasks() if "FaultyProxy" in repr(task)}
    await until(lambda: asyncio.all_tasks() - carried <= tasks, "no task is left")
    scoreboard.note("S-7", seed=SEED, faults=cancels.counts.total(), leaked=0)

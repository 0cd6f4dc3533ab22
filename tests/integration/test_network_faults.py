"""One network fault at a time, at the moment where it hurts most."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from outrider import (
    DatabaseUnavailable,
    DomainEvent,
    EventEnvelope,
    Outbox,
    OutboxRelay,
    RelayConfig,
)
from outrider import signals as s
from outrider.brokers import PublishFailed
from outrider.brokers.rabbitmq import RabbitMQConfig, RabbitMQPublisher
from outrider.brokers.redis import RedisConfig
from outrider.brokers.redis.connection import ConnectionPool
from outrider.outcomes import ACCEPTED, Outcome, Unknown
from outrider.ports import EventPublisher
from outrider.store.postgres import notifications as listening
from outrider.store.postgres.store import PostgresOutboxStore
from outrider.store.schema import migrate as schema
from outrider.testing.conformance.events import events, order_of
from outrider.testing.faulty_proxy import FaultyProxy
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.doubles import RecordingSink, SignalRecorder
from tests.support.faults.linked_kafka import LinkedKafka
from tests.support.faults.proxies import link_to
from tests.support.inbox_shop import Shop, placed
from tests.support.processes.effects_app import prepare_broker, source_of
from tests.support.processes.linked_relay import OutboxWithTwoLinks, publisher_of
from tests.support.until import until

FULL = bool(os.environ.get("OUTRIDER_FULL"))
QUICK = RelayConfig(poll_interval=timedelta(milliseconds=100), lease=timedelta(seconds=60))
MAX_WAIT_S = 60
outbox = Outbox(wake_up=False)


@pytest.fixture
async def url(services: Services) -> str:
    """A database with the outbox in it."""
    url = create_database(services)
    engine = create_async_engine(with_driver(url))
    await schema.create_all(engine)
    await Shop(engine).open()
    await engine.dispose()
    return url


def with_driver(url: str) -> str:
    return url.replace("postgresql", "postgresql+asyncpg", 1)


@asynccontextmanager
async def engine_to(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(with_driver(url))
    yield engine
    await engine.dispose()


async def record(url: str, count: int) -> list[UUID]:
    happened = [DomainEvent("thing.changed", "thing", n % 7, {"n": n}) for n in range(count)]
    async with engine_to(url) as engine, AsyncSession(engine) as session, session.begin():
        outbox.record(session, *happened)
    return [each.event_id for each in happened]


async def column(url: str, name: str) -> list[Any]:
    async with engine_to(url) as engine, engine.connect() as connection:
        return list(await connection.scalars(text(f"SELECT {name} FROM outbox ORDER BY position")))  # noqa: S608


async def all_published(url: str) -> bool:
    return set(await column(url, "status")) == {"published"}


@pytest.mark.fault("D5")
async def test_silent_database_ends_every_call_at_its_deadline_and_no_event(url: str) -> None:
    async with link_to(url) as link, engine_to(link.url(url)) as engine:
        # given
        recorded, sink, watch = await record(url, 20), RecordingSink(), SignalRecorder()
        store = PostgresOutboxStore(engine, timeout=timedelta(seconds=0.5))
        async with OutboxRelay(store, sink, QUICK, on_signal=watch):
            await until(lambda: all_published(url), "the first are published")

            # when
            link.black_hole()
            recorded += await record(url, 20)
            with pytest.raises(DatabaseUnavailable):
                await store.claim(range(64), 10)
            await until(lambda: bool(watch.of(s.StoreUnavailable)), "the relay has noticed")
            link.heal()

            # then
            await until(lambda: all_published(url), "all are published")
        assert sorted(event.event_id for event in sink.got) == sorted(recorded)
        assert set(await column(url, "retry_count")) == {0}
        await engine.dispose()
        await until(lambda: link.connections == 0, "no connection is left")


@pytest.mark.fault("R3", "D6")
async def test_settling_whose_reply_is_lost_is_repeated_and_nothing_is_published_again(
    url: str,
) -> None:
    async with link_to(url) as link, engine_to(link.url(url)) as engine:
        # given
        recorded, watch, sink = await record(url, 20), SignalRecorder(), RecordingSink()
        # One connection serves for all: there, the server knows the statements already.
        alone = replace(QUICK, loops=1, lease=timedelta(minutes=10), retention=None)
        store = PostgresOutboxStore(engine, timeout=timedelta(seconds=1))
        async with OutboxRelay(store, sink, alone, on_signal=watch):
            await until(lambda: all_published(url), "the first are published")

            # when
            sink.before = lambda: link.black_hole(toward="client")
            recorded += await record(url, 20)
            await until(lambda: all_published(url), "the server has done its part")
            await until(lambda: bool(watch.of(s.StoreUnavailable)), "the reply is missed")
            link.heal()
            await until(lambda: bool(watch.of(s.StoreAvailable)), "the relay goes on")

        # then
        assert sorted(event.event_id for event in sink.got) == sorted(recorded)
        assert not watch.of(s.LeaseWasLost)


@pytest.mark.fault("D6")
@pytest.mark.parametrize("lost", ["server", "client"])
async def test_producer_is_told_when_nobody_knows_whether_it_was_committed(
    url: str, lost: Any
) -> None:
    """Lost is COMMIT itself, on its way to the server, or the reply."""
    async with link_to(url) as link, engine_to(link.url(url)) as engine:
        # given
        event.listen(engine.sync_engine, "commit", lambda _: link.black_hole(toward=lost))

        async def commit() -> None:
            async with AsyncSession(engine) as session, session.begin():
                outbox.record(session, DomainEvent("thing.changed", "thing", 1, {}))

        # when
        committing = asyncio.create_task(commit())
        await until(lambda: link.swallowed > 0, "one of both is lost")
        link.reset()

        # then
        async with asyncio.timeout(MAX_WAIT_S):
            with pytest.raises(DBAPIError):
                await committing
        link.heal()
        assert len(await column(url, "id")) == (1 if lost == "client" else 0)


@pytest.mark.fault("D6")
@pytest.mark.parametrize("lost", ["server", "client"])
async def test_handler_whose_commit_is_lost_takes_effect_once_all_the_same(
    url: str, lost: Any
) -> None:
    async with link_to(url) as link, engine_to(link.url(url)) as engine:
        # given
        shop, order = Shop(engine), placed()
        event.listen(
            engine.sync_engine, "commit", lambda _: link.black_hole(toward=lost), once=True
        )

        # when
        handling = asyncio.create_task(shop.deliver(order))
        await until(lambda: link.swallowed > 0, "one of both is lost")
        link.reset()
        failure = await handling
        link.heal()

        # then
        assert failure is not None
        assert failure.verdict == "wait"
        assert await shop.deliver(order) is None
        assert await shop.state() == (1, 1)


@pytest.mark.fault("D12")
async def test_silent_listening_connection_is_replaced_and_polling_goes_on_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_PROBE_INTERVAL_S", 1.0)
    wake, sink, watch = Outbox(), RecordingSink(), SignalRecorder()

    async def woken_up() -> bool:
        async with engine_to(url) as engine, AsyncSession(engine) as session, session.begin():
            wake.record(session, DomainEvent("thing.changed", "thing", 1, {}))
        return any(each.source == "notify" for each in watch.of(s.WokenUp))

    async with link_to(url) as link:
        # given
        store = OutboxWithTwoLinks(with_driver(url), link.url(with_driver(url)))
        async with OutboxRelay(store, sink, QUICK, on_signal=watch):
            await until(woken_up, "notifications arrive")
            await until(lambda: all_published(url), "the first are published")

            # when
            link.black_hole()
            before, recorded = link.connections, await record(url, 5)
            await until(
                lambda: {*recorded} <= {event.event_id for event in sink.got}, "polling finds them"
            )
            await until(lambda: link.connections > before, "the listener tries another")
            link.heal()
            watch.seen.clear()

            # then
            await until(woken_up, "notifications arrive again")
        await until(lambda: link.connections == 0, "no connection is left")


BROKERS = ["rabbitmq", "kafka", "nats", "redis"] if FULL else ["rabbitmq", "nats", "redis"]
OFFSETS = range(1, 3_000, 40) if FULL else (1, 30, 300, 900)
AWAY: list[Callable[[FaultyProxy], None]] = [
    lambda link: link.black_hole(),
    lambda link: link.black_hole(toward="client"),
    lambda link: link.clog(),
    lambda link: link.refuse(),
    lambda link: link.trickle(1),
]


class Broker:
    """One of the brokers behind a link, and all that is stored there."""

    def __init__(self, url: str, link: FaultyProxy) -> None:
        self.url, self.link, self.name = url, link, f"net{uuid4().hex[:12]}"

    def publisher(self) -> EventPublisher:
        return publisher_of(self.link.url(self.url), self.name)

    async def has(self, wanted: set[UUID]) -> list[EventEnvelope]:
        """What was stored, once it is all of these."""
        source, found = source_of(self.url, self.name), list[EventEnvelope]()
        async with asyncio.timeout(MAX_WAIT_S):
            await source.open()
            while not wanted <= {each.event_id for each in found}:
                for delivery in await source.receive(1_000):
                    assert delivery.envelope is not None
                    found.append(delivery.envelope)
                    await source.acknowledge(delivery)
            await source.close()
        return found


@pytest.fixture(params=BROKERS)
async def broker(request: pytest.FixtureRequest, services: Services) -> AsyncIterator[Broker]:
    if request.param == "kafka":
        server = await asyncio.to_thread(services.another, LinkedKafka)
        link = link_to(server.url, server.link_port)
    else:
        server = getattr(services, request.param)
        link = link_to(server.url)
    async with link:
        made = Broker(server.url, link)
        await prepare_broker(made.url, made.name)
        yield made
    if request.param == "kafka":
        await asyncio.to_thread(server.stop)


async def outcomes_of(publisher: EventPublisher, batch: list[EventEnvelope]) -> list[Outcome]:
    async with asyncio.timeout(MAX_WAIT_S):
        try:
            await publisher.publish_all(batch)
        except PublishFailed as failed:
            return list(failed.outcomes)
    return [ACCEPTED] * len(batch)


async def published(publisher: EventPublisher, batch: list[EventEnvelope]) -> None:
    """As a relay does: again and again, what was not accepted."""
    left = batch
    while left:
        outcomes = await outcomes_of(publisher, left)
        assert {type(each) for each in outcomes} <= {type(ACCEPTED), Unknown}
        left = [e for e, each in zip(left, outcomes, strict=True) if each is not ACCEPTED]


@pytest.mark.fault("B9")
async def test_connection_cut_at_any_byte_loses_nothing_and_keeps_the_order(
    broker: Broker,
) -> None:
    sent: list[EventEnvelope] = []
    publisher = broker.publisher()
    for offset in OFFSETS:
        for way in ("server", "client"):
            batch = events(6, "a", "b")
            broker.link.cut_after(offset, toward=way)  # type: ignore[arg-type]
            await published(publisher, batch)
            sent += batch
    broker.link.heal()
    await publisher.close()

    stored = await broker.has({each.event_id for each in sent})

    assert order_of(stored) == order_of(sent)
    await until(lambda: broker.link.connections == 0, "no connection is left")


@pytest.mark.fault("B9", "B11")
async def test_broker_that_is_cut_off_is_unknown_at_the_deadline_and_used_again_after(
    broker: Broker,
) -> None:
    publisher = broker.publisher()
    await published(publisher, sent := events(2))
    for strike in AWAY if FULL else AWAY[:1]:
        batch = events(6, "a", "b")
        strike(broker.link)

        outcomes = await outcomes_of(publisher, batch)

        assert {type(each) for each in outcomes} == {Unknown}
        broker.link.heal()
        await published(publisher, batch)
        sent += batch
    await publisher.close()
    stored = await broker.has({each.event_id for each in sent})
    assert order_of(stored) == order_of(sent)


@pytest.mark.fault("B10")
async def test_late_reply_to_a_cancelled_call_reaches_nobody(broker: Broker) -> None:
    publisher = broker.publisher()
    await published(publisher, first := events(1))
    for _ in range(5):
        broker.link.clog(toward="client")
        call = asyncio.create_task(outcomes_of(publisher, events(3, "a")))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait({call})
        broker.link.heal()
        await published(publisher, batch := events(2, "b"))
        first += batch
    await publisher.close()

    await broker.has({each.event_id for each in first})


@pytest.mark.fault("B10")
async def test_late_echo_of_a_cancelled_call_is_not_taken_for_the_next(services: Services) -> None:
    async with link_to(services.redis.url) as link:
        pool = ConnectionPool(link.url(services.redis.url), RedisConfig())
        assert await pool.ask(("ECHO", 0)) == [b"0"]
        for number in range(1, 20, 2):
            link.clog(toward="client")
            call = asyncio.create_task(pool.ask(("ECHO", number)))
            await asyncio.sleep(0.01)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            link.heal()

            assert await pool.ask(("ECHO", number + 1)) == [str(number + 1).encode()]
        await pool.close()


@pytest.mark.fault("B16")
async def test_slow_sink_keeps_the_lease_and_has_one_batch_in_hand(
    url: str, services: Services
) -> None:
    lease, watch = timedelta(seconds=2), SignalRecorder()
    config = RelayConfig(
        poll_interval=timedelta(milliseconds=100), lease=lease, batch_size=10, loops=1
    )
    broker, name = services.rabbitmq.url, f"net{uuid4().hex[:12]}"
    await prepare_broker(broker, name)
    async with link_to(broker) as link, engine_to(url) as engine:
        # given
        publisher = RabbitMQPublisher(
            link.url(broker),
            exchange=name,
            config=RabbitMQConfig(publish_timeout=timedelta(seconds=60)),
        )
        await publisher.open()
        link.trickle(2_000, toward="server")
        recorded = await record(url, 14)

        # when
        async with OutboxRelay(PostgresOutboxStore(engine), publisher, config, on_signal=watch):
            await until(lambda: all_published(url), "all have trickled through")

        # then
        assert max(each.took for each in watch.of(s.BatchPublished)) > lease
        assert not watch.of(s.LeaseWasLost)
        in_hand = [
            each.events if isinstance(each, s.BatchClaimed) else -len(each.accepted)
            for each in watch.of(s.BatchClaimed, s.BatchPublished)
        ]
        assert max(sum(in_hand[: end + 1]) for end in range(len(in_hand))) <= 10
        assert sum(len(each.accepted) for each in watch.of(s.BatchPublished)) == len(recorded)

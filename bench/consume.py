"""Events out of a broker and into a database, each once: our consumer beside the raw client."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aio_pika
from aiokafka import AIOKafkaConsumer
from nats.aio.client import Client
from redis.asyncio import Redis
from sqlalchemy import Column, MetaData, Table, Text, insert
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from bench.cases import CONSUMER, CONSUMER_WITH_INBOX, INBOX_BY_HAND, RAW_CLIENT
from bench.databases import for_engine, outbox_on
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import BATCH, events, topology
from outrider import ConsumerConfig, EventConsumer, EventEnvelope, OutboxTables, SqlInbox
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher, KafkaSource
from outrider.brokers.nats import NatsPublisher, NatsSource
from outrider.brokers.rabbitmq import RabbitMQPublisher, RabbitMQSource
from outrider.brokers.redis import RedisPublisher, RedisSource
from outrider.consumer.scopes import current_scope
from outrider.testing.services import Services

AT_ONCE = 16
IN_HAND = 256


KAFKA = KafkaConfig(partitions=4)
INVOICES = Table("bench_invoices", MetaData(), Column("order_id", Text, nullable=False))
_MARK = postgresql.insert(OutboxTables().processed).on_conflict_do_nothing()
_EFFECT = insert(INVOICES)

Receive = Callable[[], Awaitable[Sequence[Any]]]
Acknowledge = Callable[[Sequence[Any]], Awaitable[None]]
Raw = AbstractAsyncContextManager[tuple[Receive, Acknowledge]]


@asynccontextmanager
async def raw_rabbitmq(url: str, name: str) -> AsyncIterator[tuple[Receive, Acknowledge]]:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=IN_HAND)
        arrived: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
        await (await channel.get_queue(name, ensure=False)).consume(arrived.put)

        async def receive() -> Sequence[Any]:
            found = [await arrived.get()]
            while not arrived.empty():
                found.append(arrived.get_nowait())
            return found

        async def acknowledge(messages: Sequence[Any]) -> None:
            for message in messages:
                await message.ack()

        yield receive, acknowledge


@asynccontextmanager
async def raw_kafka(url: str, name: str) -> AsyncIterator[tuple[Receive, Acknowledge]]:
    servers = url.removeprefix("kafka://")
    async with AIOKafkaConsumer(
        name,
        bootstrap_servers=servers,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:

        async def receive() -> Sequence[Any]:
            found = await consumer.getmany(timeout_ms=1000, max_records=IN_HAND)
            return [record for records in found.values() for record in records]

        async def acknowledge(_: Sequence[Any]) -> None:
            await consumer.commit()

        yield receive, acknowledge


@asynccontextmanager
async def raw_nats(url: str, name: str) -> AsyncIterator[tuple[Receive, Acknowledge]]:
    client = Client()
    await client.connect(url, allow_reconnect=False)
    pulled = await client.jetstream().pull_subscribe("", durable="raw", stream=name)

    async def receive() -> Sequence[Any]:
        return await pulled.fetch(IN_HAND, timeout=30)

    async def acknowledge(messages: Sequence[Any]) -> None:
        for message in messages:
            await message.ack()

    yield receive, acknowledge
    await client.close()


@asynccontextmanager
async def raw_redis(url: str, name: str) -> AsyncIterator[tuple[Receive, Acknowledge]]:
    async with Redis.from_url(url) as client:
        await client.xgroup_create(name, "raw", id="0")

        async def receive() -> Sequence[Any]:
            found = await client.xreadgroup("raw", "one", {name: ">"}, count=IN_HAND, block=1000)
            return found[0][1] if found else ()

        async def acknowledge(messages: Sequence[Any]) -> None:
            await client.xack(name, "raw", *[message[0] for message in messages])

        yield receive, acknowledge


@dataclass(frozen=True, kw_only=True)
class Broker:
    """How one broker is filled, read by its raw client, and read by our source."""

    publisher: Callable[[str, str], Any]
    raw: Callable[[str, str], Raw]
    source: Callable[[str, str], Any]


BROKERS = {
    "rabbitmq": Broker(
        publisher=lambda url, name: RabbitMQPublisher(url, exchange=name, topology=topology(name)),
        raw=raw_rabbitmq,
        source=lambda url, name: RabbitMQSource(url, queue=name),
    ),
    "kafka": Broker(
        publisher=lambda url, name: KafkaPublisher(url, name, config=KAFKA),
        raw=raw_kafka,
        source=lambda url, name: KafkaSource(url, name, group=name, config=KAFKA),
    ),
    "nats": Broker(
        publisher=lambda url, name: NatsPublisher(url, stream=name, subject=name),
        raw=raw_nats,
        source=lambda url, name: NatsSource(url, stream=name, group="ours"),
    ),
    "redis": Broker(
        publisher=lambda url, name: RedisPublisher(url, stream=name),
        raw=raw_redis,
        source=lambda url, name: RedisSource(url, name, group="ours"),
    ),
}


class Nothing:
    """A handler that only knows when all events are through."""

    name = "invoice"

    def __init__(self, count: int) -> None:
        self._left, self.done = count, asyncio.Event()

    async def handle(self, _: EventEnvelope, /) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()


class Invoice(Nothing):
    """Writes a row in the transaction of its mark."""

    async def handle(self, envelope: EventEnvelope, /) -> None:
        scope = current_scope()
        assert scope is not None
        session = await scope.get(AsyncSession)
        await session.execute(_EFFECT, {"order_id": envelope.aggregate_id})
        await super().handle(envelope)


class ConsumeBench:
    """One broker and one database; each measurement fills a queue of its own first."""

    def __init__(self, broker: Broker, url: str, database: str, count: int) -> None:
        self._broker, self._url, self._database, self._count = broker, url, database, count
        self._numbers = itertools.count(1)

    async def _filled(self) -> str:
        name, made = f"bench_consume_{next(self._numbers)}", events(self._count)
        async with self._broker.publisher(self._url, name) as publisher:
            for at in range(0, self._count, BATCH):
                await publisher.publish_all(made[at : at + BATCH])
        return name

    async def raw(self) -> float:
        return await self._read(None)

    async def by_hand(self) -> float:
        """Sixteen transactions at once, no order kept: mark, effect, commit, acknowledge."""
        async with self._warm_engine() as engine:

            async def some(messages: Sequence[Any]) -> None:
                for _ in messages:
                    async with AsyncSession(engine) as session, session.begin():
                        await session.execute(_MARK, {"event_id": uuid4(), "handler_name": "hand"})
                        await session.execute(_EFFECT, {"order_id": "order-1"})

            async def handle(messages: Sequence[Any]) -> None:
                await asyncio.gather(*(some(messages[at::AT_ONCE]) for at in range(AT_ONCE)))

            return await self._read(handle)

    async def _read(self, handle: Acknowledge | None) -> float:
        name = await self._filled()
        async with self._broker.raw(self._url, name) as (receive, acknowledge):
            started, left = time.perf_counter(), self._count
            while left > 0:
                found = await receive()
                if found and handle:
                    await handle(found)
                if found:
                    await acknowledge(found)
                left -= len(found)
            return self._count / (time.perf_counter() - started)

    async def ours_alone(self) -> float:
        return await self._consumed(Nothing(self._count), None)

    async def ours(self) -> float:
        async with self._warm_engine() as engine:
            inbox = SqlInbox(lambda: AsyncSession(engine))
            return await self._consumed(Invoice(self._count), inbox)

    @asynccontextmanager
    async def _warm_engine(self) -> AsyncIterator[AsyncEngine]:
        """With all its connections made, so that these are no part of the measurement."""
        engine = create_async_engine(for_engine(self._database), pool_size=AT_ONCE)

        async def connect() -> None:
            async with engine.connect() as connection:
                await connection.exec_driver_sql("SELECT pg_sleep(0.2)")

        await asyncio.gather(*(connect() for _ in range(AT_ONCE)))
        yield engine
        await engine.dispose()

    async def _consumed(self, handler: Nothing, inbox: SqlInbox | None) -> float:
        source = self._broker.source(self._url, await self._filled())
        config = ConsumerConfig(concurrency=AT_ONCE, prefetch=IN_HAND)
        await source.open()
        started = time.perf_counter()
        async with EventConsumer(source, [("*", handler)], config, inbox=inbox):
            await handler.done.wait()
            return self._count / (time.perf_counter() - started)


async def _run(bench: ConsumeBench, rounds: int) -> list[Row]:
    cases = {
        RAW_CLIENT: bench.raw,
        INBOX_BY_HAND: bench.by_hand,
        CONSUMER: bench.ours_alone,
        CONSUMER_WITH_INBOX: bench.ours,
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            rates[name].append(await case())
    return rows_of(rates, [RAW_CLIENT, INBOX_BY_HAND])


async def _invoices(url: str) -> None:
    engine = create_async_engine(for_engine(url))
    async with engine.begin() as connection:
        await connection.run_sync(INVOICES.create)
    await engine.dispose()


def run(
    rounds: int = 5,
    count: int = 5_000,
    brokers: Sequence[str] = tuple(BROKERS),
    services: Services | None = None,
) -> dict[str, list[Row]]:
    tables = {}
    with outbox_on(services, "bench_consume") as (servers, database):
        asyncio.run(_invoices(database))
        for name in brokers:
            bench = ConsumeBench(BROKERS[name], getattr(servers, name).url, database, count)
            tables[f"from {name}"] = asyncio.run(_run(bench, rounds))
    for title, rows in tables.items():
        show(f"{title}, {count:,} events of 300 bytes", rows)
    settings = {"rounds": rounds, "count": count, "at_once": AT_ONCE, "in_hand": IN_HAND}
    save("consume", tables, settings)
    return tables

"""Outbox rows to RabbitMQ: the relay beside the loop that people write first, and the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import aio_pika
import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from bench.cases import (
    AIO_PIKA,
    BARE_FRAMES,
    BARE_NOOP,
    COMMIT_TO_CONSUMER,
    FRAMES,
    ONE_BY_ONE,
    TO_NOWHERE,
    TO_RABBITMQ,
    outrider_to,
    outrider_tuned,
)
from bench.databases import for_engine, outbox_on
from bench.latency import latency, percentiles
from bench.measure import Row, in_turn, rows_of, save, show
from bench.rabbitmq_raw import (
    AGGREGATES,
    EVENT_TYPE,
    PAYLOAD,
    RawFrames,
    by_hand,
    emptied,
    topology,
    with_aio_pika,
)
from outrider import EventEnvelope, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.observability import BatchPublished, Signal
from outrider.testing.services import Services

BATCH = 1_000
"""The batch size of the bare loops, and of the relay where it is tuned."""
EXCHANGE = "bench_relay"

OURS = outrider_to("RabbitMQ")
OURS_TUNED = outrider_tuned("RabbitMQ")
OURS_NOOP = outrider_to("nowhere")
OURS_NOOP_TUNED = outrider_tuned("nowhere")

DEFAULT, TUNED = RelayConfig(), RelayConfig(batch_size=BATCH)

# The ids grow with time, as UUIDv7 does.
FILL = """
INSERT INTO outbox (id, lane, aggregate_key, event_type, aggregate_type, aggregate_id, payload,
    occurred_at)
SELECT overlay(gen_random_uuid()::text placing lpad(to_hex(n), 8, '0') from 1 for 8)::uuid,
    (key % 64 + 64) % 64, key, $2, 'order', 'order-' || a,
    $3::text::jsonb, now()
FROM (SELECT n, n % $4::int AS a, hashint8extended(n % $4::int, 0) AS key
      FROM generate_series(1, $1::int) AS n) AS made
ORDER BY n
"""
_CLAIM = """
SELECT position, id::text, aggregate_id, occurred_at, payload::text FROM outbox
WHERE status = 'pending' AND sink = 'default' AND position > $2 ORDER BY position LIMIT $1
"""
_SETTLE = """
UPDATE outbox SET status = 'published', published_at = clock_timestamp()
WHERE position = ANY($1::bigint[])
"""


class Nowhere:
    """A publisher that accepts everything at once."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def publish(self, envelope: EventEnvelope, /) -> None: ...
    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None: ...


class Bench:
    """One database and one broker for all cases, both named by their URLs."""

    def __init__(self, database: str, broker: str, count: int) -> None:
        self.database, self.url, self.count = database, broker, count
        self.few = max(100, count // 10)
        """The number of events for slow cases."""
        self._engine = create_async_engine(for_engine(database))

    async def aclose(self) -> None:
        await self._engine.dispose()

    async def fill(self, count: int) -> None:
        connection = await asyncpg.connect(self.database)
        await connection.execute("TRUNCATE outbox")
        await connection.execute(FILL, count, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
        await connection.execute("VACUUM ANALYZE outbox")
        await connection.close()

    @asynccontextmanager
    async def database_connection(self) -> Any:
        connection = await asyncpg.connect(self.database)
        try:
            yield connection
        finally:
            await connection.close()

    async def relay(self, publisher: Any, config: RelayConfig) -> float:
        await self.fill(self.count)
        done, accepted = asyncio.Event(), 0

        def watch(signal: Signal) -> None:
            nonlocal accepted
            if isinstance(signal, BatchPublished):
                accepted += len(signal.accepted)
                if accepted >= self.count:
                    done.set()

        relay = OutboxRelay(SqlOutboxStore(self._engine), publisher, config, on_signal=watch)
        await publisher.open()
        async with relay:
            started = time.perf_counter()
            await done.wait()
            return self.count / (time.perf_counter() - started)

    async def to_rabbitmq(self, config: RelayConfig) -> float:
        return await self.relay(RabbitMQPublisher(self.url, exchange=EXCHANGE), config)

    async def to_nowhere(self, config: RelayConfig) -> float:
        return await self.relay(Nowhere(), config)

    async def bare(self, send: Callable[[list[Any]], Awaitable[None]] | None) -> float:
        await self.fill(self.count)
        async with self.database_connection() as connection:
            claim, settle = await connection.prepare(_CLAIM), await connection.prepare(_SETTLE)
            started, last = time.perf_counter(), 0
            # No other loop runs, so this one may go on from the position where it was.
            while rows := await claim.fetch(BATCH, last):
                if send:
                    await send(rows)
                await settle.fetch([row[0] for row in rows])
                last = rows[-1][0]
            return self.count / (time.perf_counter() - started)

    async def ceiling(self) -> float:
        raw = RawFrames(EXCHANGE)

        async def send(rows: list[Any]) -> None:
            await raw.publish(
                [raw.message(row[1], row[2], row[3].isoformat(), row[4].encode()) for row in rows]
            )

        async with await raw.open(self.url):
            return await self.bare(send)

    async def nothing_sent(self) -> float:
        return await self.bare(None)

    async def one_by_one(self) -> float:
        """Claim a hundred, publish one by one, update one by one, commit."""
        await self.fill(self.few)
        async with self.database_connection() as database, await aio_pika.connect(self.url) as amqp:
            channel = await amqp.channel()
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            started = time.perf_counter()
            while await self._hundred(database, exchange):
                pass
            return self.few / (time.perf_counter() - started)

    async def _hundred(self, connection: Any, exchange: aio_pika.abc.AbstractExchange) -> int:
        async with connection.transaction():
            rows = await connection.fetch(_CLAIM + " FOR UPDATE SKIP LOCKED", 100, 0)
            for position, event_id, _, _, payload in rows:
                message = aio_pika.Message(
                    payload.encode(),
                    message_id=event_id,
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await exchange.publish(message, routing_key=EVENT_TYPE)
                await connection.execute(_SETTLE, [position])
        return len(rows)


async def throughput(bench: Bench, rounds: int) -> tuple[list[Row], list[Row]]:
    broker: dict[str, Callable[[], Awaitable[float]]] = {
        ONE_BY_ONE: bench.one_by_one,
        AIO_PIKA: lambda: with_aio_pika(bench.url, EXCHANGE, bench.few),
        BARE_FRAMES: bench.ceiling,
        FRAMES: lambda: by_hand(bench.url, EXCHANGE, bench.count),
        OURS_TUNED: lambda: bench.to_rabbitmq(TUNED),
        OURS: lambda: bench.to_rabbitmq(DEFAULT),
    }
    nowhere: dict[str, Callable[[], Awaitable[float]]] = {
        BARE_NOOP: bench.nothing_sent,
        OURS_NOOP_TUNED: lambda: bench.to_nowhere(TUNED),
        OURS_NOOP: lambda: bench.to_nowhere(DEFAULT),
    }
    # A long queue slows the broker down, so each case begins with an empty one.
    before = partial(emptied, bench.url, EXCHANGE)
    rates = await in_turn(broker | nowhere, rounds=rounds, before=before)
    return (
        rows_of({name: rates[name] for name in broker}, [BARE_FRAMES, ONE_BY_ONE]),
        rows_of({name: rates[name] for name in nowhere}, [BARE_NOOP]),
    )


async def _run(database: str, amqp: str, rounds: int, count: int, events: int) -> dict[str, Any]:
    async with RabbitMQPublisher(amqp, exchange=EXCHANGE, topology=topology(EXCHANGE)):
        pass  # opening it declares the queue
    async with aclosing(Bench(database, amqp, count)) as bench:
        broker, nowhere = await throughput(bench, rounds)
        await bench.fill(0)
    ours, raw = await latency(database, amqp, EXCHANGE, events, rate=200)
    return {
        "tables": {TO_RABBITMQ: broker, TO_NOWHERE: nowhere},
        "latency": {
            COMMIT_TO_CONSUMER: percentiles(ours),
            "publish and confirm alone": percentiles(raw),
        },
    }


def run(
    rounds: int = 5, count: int = 60_000, events: int = 2_000, services: Services | None = None
) -> dict[str, list[Row]]:
    with outbox_on(services, "bench_relay") as (servers, database):
        found = asyncio.run(_run(database, servers.rabbitmq.url, rounds, count, events))
    for title, rows in found["tables"].items():
        show(f"{title}, events of 300 bytes over {AGGREGATES} aggregates", rows)
    print("\nlatency at 200 events a second")
    for name, figures in found["latency"].items():
        print(f"  {name:<28}{figures}")
    settings = {
        "rounds": rounds,
        "count": count,
        "batch": DEFAULT.batch_size,
        "latency": found["latency"],
    }
    save("relay", found["tables"], settings)
    return dict(found["tables"])

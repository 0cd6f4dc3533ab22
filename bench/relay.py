"""Outbox rows to RabbitMQ: the relay beside the loop people write first, and beside the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.latency import latency, percentiles
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import (
    AGGREGATES,
    EVENT_TYPE,
    PAYLOAD,
    RawFrames,
    by_hand,
    topology,
    with_aio_pika,
)
from outrider import (
    EventEnvelope,
    OutboxRelay,
    RelayConfig,
    SqlOutbox,
    create_all,
)
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.signals import BatchPublished, Signal
from outrider.testing.services import Services

BATCH = 1_000
EXCHANGE = "bench_relay"

ONE_BY_ONE = "claim 100, one by one"
AIO_PIKA = "aio-pika, no database"
CEILING = "bare claim, frames, settle"
BY_HAND = "frames by hand, no database"
OURS = "outrider to RabbitMQ"
BARE_NOOP = "bare claim, settle"
OURS_NOOP = "outrider to nowhere"

# Ids that grow with time, as the library's own do.
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
    """One database and one broker for all cases."""

    def __init__(self, services: Services, engine: AsyncEngine, count: int) -> None:
        self.services, self.engine, self.count = services, engine, count
        self.amqp = services.rabbitmq.url

    async def fill(self, count: int) -> None:
        link = await asyncpg.connect(self.services.postgres.url)
        await link.execute("TRUNCATE outbox")
        await link.execute(FILL, count, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
        await link.execute("VACUUM ANALYZE outbox")
        await link.close()

    @asynccontextmanager
    async def link(self) -> Any:
        link = await asyncpg.connect(self.services.postgres.url)
        try:
            yield link
        finally:
            await link.close()

    async def relay(self, publisher: Any) -> float:
        await self.fill(self.count)
        done, accepted = asyncio.Event(), 0

        def watch(signal: Signal) -> None:
            nonlocal accepted
            if isinstance(signal, BatchPublished):
                accepted += len(signal.accepted)
                if accepted >= self.count:
                    done.set()

        config = RelayConfig(batch_size=BATCH)
        relay = OutboxRelay(SqlOutbox(self.engine), publisher, config, on_signal=watch)
        await publisher.open()
        async with relay:
            started = time.perf_counter()
            await done.wait()
            return self.count / (time.perf_counter() - started)

    async def to_rabbitmq(self) -> float:
        return await self.relay(RabbitMQPublisher(self.amqp, exchange=EXCHANGE))

    async def to_nowhere(self) -> float:
        return await self.relay(Nowhere())

    async def bare(self, send: Callable[[list[Any]], Awaitable[None]] | None) -> float:
        await self.fill(self.count)
        async with self.link() as link:
            claim, settle = await link.prepare(_CLAIM), await link.prepare(_SETTLE)
            started, last = time.perf_counter(), 0
            # Alone in the world, it may go on from where it was and walk over nothing twice.
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

        async with await raw.open(self.amqp):
            return await self.bare(send)

    async def nothing_sent(self) -> float:
        return await self.bare(None)

    async def one_by_one(self) -> float:
        """Claim a hundred, publish one by one, update one by one, commit."""
        count = max(100, self.count // 10)
        await self.fill(count)
        async with self.link() as link, await aio_pika.connect(self.amqp) as connection:
            channel = await connection.channel()
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            started = time.perf_counter()
            while await self._hundred(link, exchange):
                pass
            return count / (time.perf_counter() - started)

    async def _hundred(self, link: Any, exchange: aio_pika.abc.AbstractExchange) -> int:
        async with link.transaction():
            rows = await link.fetch(_CLAIM + " FOR UPDATE SKIP LOCKED", 100, 0)
            for position, event_id, _, _, payload in rows:
                message = aio_pika.Message(
                    payload.encode(),
                    message_id=event_id,
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await exchange.publish(message, routing_key=EVENT_TYPE)
                await link.execute(_SETTLE, [position])
        return len(rows)


async def throughput(services: Services, engine: AsyncEngine, rounds: int, count: int) -> Any:
    bench = Bench(services, engine, count)
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        ONE_BY_ONE: bench.one_by_one,
        AIO_PIKA: lambda: with_aio_pika(bench.amqp, EXCHANGE, count),
        CEILING: bench.ceiling,
        BY_HAND: lambda: by_hand(bench.amqp, EXCHANGE, count),
        OURS: bench.to_rabbitmq,
        BARE_NOOP: bench.nothing_sent,
        OURS_NOOP: bench.to_nowhere,
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            services.rabbitmq.ctl("purge_queue", "-p", services.rabbitmq.name, EXCHANGE)
            rate = await case()
            if number:  # the first round warms up
                rates[name].append(rate)
    broker = {name: rates[name] for name in (ONE_BY_ONE, AIO_PIKA, CEILING, BY_HAND, OURS)}
    nowhere = {name: rates[name] for name in (BARE_NOOP, OURS_NOOP)}
    return rows_of(broker, [CEILING, ONE_BY_ONE]), rows_of(nowhere, [BARE_NOOP])


async def _run(services: Services, rounds: int, count: int, events: int) -> dict[str, Any]:
    url = services.postgres.url.replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    await create_all(engine)
    publisher = RabbitMQPublisher(
        services.rabbitmq.url, exchange=EXCHANGE, topology=topology(EXCHANGE)
    )
    await publisher.open()
    await publisher.close()
    broker, nowhere = await throughput(services, engine, rounds, count)
    await Bench(services, engine, 0).fill(0)
    ours, raw = await latency(services, engine, EXCHANGE, events, rate=200)
    await engine.dispose()
    return {
        "tables": {"to RabbitMQ": broker, "to nowhere": nowhere},
        "latency": {
            "commit to consumer": percentiles(ours),
            "publish and confirm alone": percentiles(raw),
        },
    }


def run(rounds: int = 5, count: int = 20_000, events: int = 2_000) -> dict[str, list[Row]]:
    with Services() as services:
        found = asyncio.run(_run(services, rounds, count, events))
    for title, rows in found["tables"].items():
        show(f"{title}, events of 300 bytes over {AGGREGATES} aggregates", rows)
    print("\nlatency at 200 events a second")
    for name, figures in found["latency"].items():
        print(f"  {name:<28}{figures}")
    settings = {"rounds": rounds, "count": count, "latency": found["latency"]}
    save("relay", found["tables"], settings)
    return dict(found["tables"])

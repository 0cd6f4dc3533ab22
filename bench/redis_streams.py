"""Outbox rows to Redis Streams: the relay beside redis-py's pipeline, and beside the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

from hiredis import pack_command
from redis.asyncio import Connection, Redis
from redis.asyncio.connection import parse_url

from bench.cases import BARE_REDIS, REDIS_PIPELINE, outrider_to, outrider_tuned
from bench.databases import outbox_on
from bench.measure import Row, in_turn, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, events
from bench.relay import BATCH, DEFAULT, TUNED, Bench
from outrider import RelayConfig
from outrider.brokers.redis import RedisPublisher
from outrider.testing.services import Services

STREAM = "bench"

PACKED = "packed by hand, no database"
BARE_PIPELINE = "bare claim, pipeline, settle"
OURS_ALONE = "RedisPublisher, no database"
OURS = outrider_to("Redis")
OURS_TUNED = outrider_tuned("Redis")

Event = tuple[str, str, str, bytes]
"""Its id, its aggregate's id, its time and its payload."""


def fields(event: Event) -> dict[str, Any]:
    event_id, aggregate_id, created_at, data = event
    return {
        "id": event_id,
        "type": EVENT_TYPE,
        "aggregate_type": "order",
        "aggregate_id": aggregate_id,
        "created_at": created_at,
        "data": data,
    }


class RedisBench(Bench):
    """One database and one server for all cases."""

    def __init__(self, database: str, broker: str, count: int) -> None:
        super().__init__(database, broker, count)
        self.events = [
            (str(e.event_id), e.aggregate_id, e.occurred_at.isoformat(), e.data)
            for e in events(count)
        ]

    async def pipelined(self, client: Redis, batch: Iterable[Event]) -> None:
        pipeline = client.pipeline(transaction=False)
        for event in batch:
            pipeline.xadd(STREAM, fields(event))
        await pipeline.execute()

    async def packed(self, connection: Connection, batch: list[Event]) -> None:
        """Fails on the first reply that is an error; what was sent before it stays sent."""
        commands = [
            pack_command(
                ("XADD", STREAM, "*", *(part for pair in fields(e).items() for part in pair))
            )
            for e in batch
        ]
        await connection.send_packed_command(b"".join(commands))
        for _ in commands:
            await connection.read_response()

    async def connected(self) -> Connection:
        connection = Connection(**parse_url(self.url), socket_timeout=None, protocol=2)
        await connection.connect()
        return connection

    async def with_pipeline(self) -> float:
        async with Redis.from_url(self.url) as client:
            return await self._rate(lambda batch: self.pipelined(client, batch))

    async def with_packed(self) -> float:
        connection = await self.connected()
        rate = await self._rate(lambda batch: self.packed(connection, batch))
        await connection.disconnect()
        return rate

    async def ours_alone(self) -> float:
        made = events(self.count)
        async with RedisPublisher(self.url, stream=STREAM) as publisher:
            started = time.perf_counter()
            for at in range(0, self.count, BATCH):
                await publisher.publish_all(made[at : at + BATCH])
            return self.count / (time.perf_counter() - started)

    async def bare_pipeline(self) -> float:
        async with Redis.from_url(self.url) as client:
            return await self.bare(lambda rows: self.pipelined(client, map(_event, rows)))

    async def ceiling(self) -> float:
        connection = await self.connected()
        rate = await self.bare(lambda rows: self.packed(connection, list(map(_event, rows))))
        await connection.disconnect()
        return rate

    async def ours(self, config: RelayConfig) -> float:
        return await self.relay(RedisPublisher(self.url, stream=STREAM), config)

    async def _rate(self, send: Callable[[list[Event]], Awaitable[None]]) -> float:
        started = time.perf_counter()
        for at in range(0, self.count, BATCH):
            await send(self.events[at : at + BATCH])
        return self.count / (time.perf_counter() - started)


def _event(row: Any) -> Event:
    return row[1], row[2], row[3].isoformat(), row[4].encode()


async def throughput(bench: RedisBench, fsync: str, rounds: int) -> list[Row]:
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        REDIS_PIPELINE: bench.with_pipeline,
        PACKED: bench.with_packed,
        OURS_ALONE: bench.ours_alone,
        BARE_PIPELINE: bench.bare_pipeline,
        BARE_REDIS: bench.ceiling,
        OURS_TUNED: lambda: bench.ours(TUNED),
        OURS: lambda: bench.ours(DEFAULT),
    }
    async with Redis.from_url(bench.url) as client:
        before = await client.config_get("appendfsync")
        await client.config_set("appendfsync", fsync)
        rates = await in_turn(cases, rounds=rounds, before=lambda: client.delete(STREAM))
        await client.config_set("appendfsync", before["appendfsync"])
    return rows_of(rates, [REDIS_PIPELINE, BARE_PIPELINE, BARE_REDIS])


async def _run(bench: RedisBench, rounds: int) -> dict[str, list[Row]]:
    async with aclosing(bench):
        return {
            f"to Redis, appendfsync {fsync}": await throughput(bench, fsync, rounds)
            for fsync in ("always", "everysec")
        }


def run(
    rounds: int = 5, count: int = 60_000, services: Services | None = None
) -> dict[str, list[Row]]:
    with outbox_on(services, "bench_redis") as (servers, database):
        tables = asyncio.run(_run(RedisBench(database, servers.redis.url, count), rounds))
    for title, rows in tables.items():
        show(f"{title}, events of 300 bytes over {AGGREGATES} aggregates", rows)
    save("redis", tables, {"rounds": rounds, "count": count, "batch": DEFAULT.batch_size})
    return tables


if __name__ == "__main__":
    run()

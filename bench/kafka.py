"""Outbox rows to Kafka: the relay beside aiokafka alone, and beside a bare loop around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import DefaultPartitioner

from bench.cases import AIOKAFKA_SEND, BARE_KAFKA, outrider_to, outrider_tuned
from bench.databases import outbox_on
from bench.measure import Row, in_turn, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD, events
from bench.relay import BATCH, DEFAULT, TUNED, Bench
from outrider import RelayConfig
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher
from outrider.testing.services import Services

TOPIC = "bench_relay"
PARTITIONS = 4

SEND_BATCH = "send_batch, no database"
PUBLISHER = "publisher, no database"
OURS = outrider_to("Kafka")
OURS_TUNED = outrider_tuned("Kafka")

Message = tuple[bytes, bytes, list[tuple[str, bytes]]]


def message(event_id: str, aggregate_id: str, occurred_at: str, body: bytes) -> Message:
    """Key, value and the CloudEvents headers that a reader needs at least."""
    headers = {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": event_id,
        "ce_source": "bench",
        "ce_type": EVENT_TYPE,
        "ce_subject": aggregate_id,
        "ce_time": occurred_at,
        "ce_aggregatetype": "order",
        "ce_eventversion": "1",
    }
    encoded = [(name, value.encode()) for name, value in headers.items()]
    return aggregate_id.encode(), body, encoded


def messages(count: int) -> list[list[Message]]:
    """Made beforehand, so that only the client is measured."""
    made = [
        message(str(e.event_id), e.aggregate_id, e.occurred_at.isoformat(), e.data)
        for e in events(count)
    ]
    return [made[at : at + BATCH] for at in range(0, count, BATCH)]


@asynccontextmanager
async def raw_producer(url: str) -> AsyncIterator[AIOKafkaProducer]:
    """The fastest settings that were found."""
    async with AIOKafkaProducer(
        bootstrap_servers=url.removeprefix("kafka://"),
        enable_idempotence=True,
        max_batch_size=1_000_000,
        linger_ms=5,
    ) as producer:
        await producer.partitions_for(TOPIC)
        yield producer


async def send(producer: AIOKafkaProducer, batch: Sequence[Message]) -> None:
    sent = [
        await producer.send(TOPIC, value, key, headers=headers) for key, value, headers in batch
    ]
    await asyncio.gather(*sent)


async def send_batch(producer: AIOKafkaProducer, batch: Sequence[Message]) -> None:
    """One batch for each partition, filled by hand; all of it fits."""
    numbers, find = list(range(PARTITIONS)), DefaultPartitioner()
    filled = [producer.create_batch() for _ in numbers]
    for key, value, headers in batch:
        records = filled[find(key, numbers, numbers)]
        assert records.append(key=key, value=value, headers=headers, timestamp=None)
    sent = [await producer.send_batch(filled[n], TOPIC, partition=n) for n in numbers]
    await asyncio.gather(*sent)


class KafkaBench(Bench):
    """The database and the loops of the relay benchmark, with Kafka as the broker."""

    def publisher(self) -> KafkaPublisher:
        return KafkaPublisher(self.url, TOPIC, config=KafkaConfig(partitions=PARTITIONS))

    async def raw(self, work: Callable[..., Awaitable[None]]) -> float:
        batches = messages(self.count)
        async with raw_producer(self.url) as producer:
            started = time.perf_counter()
            for batch in batches:
                await work(producer, batch)
            return self.count / (time.perf_counter() - started)

    async def alone(self) -> float:
        made = events(self.count)
        async with self.publisher() as publisher:
            started = time.perf_counter()
            for at in range(0, self.count, BATCH):
                await publisher.publish_all(made[at : at + BATCH])
            return self.count / (time.perf_counter() - started)

    async def ceiling(self) -> float:
        async with raw_producer(self.url) as producer:

            async def send_rows(rows: list[Any]) -> None:
                made = [message(r[1], r[2], r[3].isoformat(), r[4].encode()) for r in rows]
                await send_batch(producer, made)

            return await self.bare(send_rows)

    async def ours(self, config: RelayConfig) -> float:
        return await self.relay(self.publisher(), config)


async def _run(bench: KafkaBench, rounds: int) -> list[Row]:
    async with bench.publisher():
        pass  # opening it creates the topic
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        AIOKAFKA_SEND: lambda: bench.raw(send),
        SEND_BATCH: lambda: bench.raw(send_batch),
        PUBLISHER: bench.alone,
        BARE_KAFKA: bench.ceiling,
        OURS_TUNED: lambda: bench.ours(TUNED),
        OURS: lambda: bench.ours(DEFAULT),
    }
    async with aclosing(bench):
        return rows_of(await in_turn(cases, rounds=rounds), [AIOKAFKA_SEND, BARE_KAFKA])


def run(
    rounds: int = 7, count: int = 60_000, services: Services | None = None
) -> dict[str, list[Row]]:
    with outbox_on(services, "bench_kafka") as (servers, database):
        rows = asyncio.run(_run(KafkaBench(database, servers.kafka.url, count), rounds))
    tables = {"to Kafka": rows}
    show(f"to Kafka, events of {len(PAYLOAD)} bytes over {AGGREGATES} aggregates", rows)
    save("kafka", tables, {"rounds": rounds, "count": count, "batch": DEFAULT.batch_size})
    return tables


if __name__ == "__main__":
    run()

"""The relay on a table that holds millions of rows already, beside an empty one."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import psutil
from sqlalchemy.ext.asyncio import create_async_engine

from bench.cases import BIG_TABLE, EMPTY_TABLE, filled_table
from bench.databases import for_engine, outbox_database
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD, emptied, topology
from bench.relay import BATCH, EXCHANGE, FILL
from outrider import OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.observability import BatchPublished, Signal
from outrider.testing.services import Services

PUBLISHED, PENDING = 5_000_000, 1_000_000

_PUBLISHED = """
UPDATE outbox SET status = 'published', published_at = now(), delivery_number = position
WHERE position <= (SELECT min(position) + $1 - 1 FROM outbox)
"""

_DELIVERED = """
INSERT INTO outbox_sinks (sink, last_delivery_number) VALUES ('default', $1)
ON CONFLICT (sink) DO UPDATE SET last_delivery_number = excluded.last_delivery_number
"""


async def fill(database: str, published: int, pending: int) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("TRUNCATE outbox")
    await connection.execute(FILL, published + pending, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
    if published:
        await connection.execute(_PUBLISHED, published)
    # A relay numbers deliveries from here on, as if it had published the rows above.
    await connection.execute(_DELIVERED, published)
    await connection.execute("VACUUM ANALYZE outbox")
    # Write dirty pages now, so that filling the table is not measured.
    await connection.execute("CHECKPOINT")
    await connection.close()


async def drain(services: Services, database: str, count: int) -> tuple[float, float]:
    """Events a second for the next `count`, and by how many MB the process grew meanwhile."""
    done, accepted = asyncio.Event(), 0

    def watch(signal: Signal) -> None:
        nonlocal accepted
        if isinstance(signal, BatchPublished):
            accepted += len(signal.accepted)
            if accepted >= count:
                done.set()

    process = psutil.Process()
    publisher = RabbitMQPublisher(
        services.rabbitmq.url, exchange=EXCHANGE, topology=topology(EXCHANGE)
    )
    await publisher.open()
    engine = create_async_engine(for_engine(database))
    config = RelayConfig(batch_size=BATCH, retention=None)
    relay = OutboxRelay(SqlOutboxStore(engine), publisher, config, on_signal=watch)
    before, started = process.memory_info().rss, time.perf_counter()
    async with relay:
        await done.wait()
        rate = accepted / (time.perf_counter() - started)
    await engine.dispose()
    # A long queue slows the broker down, so each measurement begins with an empty one.
    await emptied(services.rabbitmq.url, EXCHANGE)
    return rate, (process.memory_info().rss - before) / 1e6


async def _run(
    services: Services, tables: dict[str, str], count: int, rounds: int
) -> tuple[list[Row], float]:
    """Both tables in turn, on one server, so that a slow moment of disk or broker meets both."""
    rates: dict[str, list[float]] = {name: [] for name in tables}
    grown = []
    small, *_ = tables
    for number in range(rounds + 1):
        await fill(tables[small], 0, count)
        for name, database in tables.items():
            rate, megabytes = await drain(services, database, count)
            if number:  # the first round warms the caches up
                rates[name].append(rate)
                grown.append(megabytes)
    return rows_of(rates, [small]), max(grown)


def _as_for_a_big_table(services: Services) -> None:
    """PostgreSQL's defaults suit small tables; both cases get the same larger settings."""
    for setting in ("shared_buffers = '1GB'", "max_wal_size = '8GB'"):
        services.postgres.psql(f"ALTER SYSTEM SET {setting}")
    services.postgres.stop()
    services.postgres.start()


def run(
    rounds: int = 7, count: int = 50_000, published: int = PUBLISHED, pending: int = PENDING
) -> dict[str, list[Row]]:
    with Services() as services:
        _as_for_a_big_table(services)
        server = services.postgres.url
        with outbox_database(server, "small") as small, outbox_database(server, "big") as big:
            # More pending rows than are drained, so that `pending` are left at the end.
            asyncio.run(fill(big, published, pending + (rounds + 1) * count))
            named = {EMPTY_TABLE: small, filled_table(published, pending): big}
            rows, grown = asyncio.run(_run(services, named, count, rounds))
    show("relay to RabbitMQ on a big table", rows)
    print(f"  memory grew by {grown:.1f} MB at most while {count:,} events were drained")
    save(
        "big_table",
        {BIG_TABLE: rows},
        {"rounds": rounds, "count": count, "batch": BATCH, "megabytes": grown},
    )
    return {BIG_TABLE: rows}

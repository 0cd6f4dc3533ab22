"""The relay on a table that holds millions of rows already, beside an empty one."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import psutil
from sqlalchemy.ext.asyncio import create_async_engine

from bench.databases import for_engine, outbox_database
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD, emptied, topology
from bench.relay import BATCH, EXCHANGE, FILL
from outrider import OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.observability import BatchPublished, Signal
from outrider.testing.services import Services

_PUBLISHED = """
UPDATE outbox SET status = 'published', published_at = now(), delivery_number = position
WHERE position <= (SELECT min(position) + $1 - 1 FROM outbox)
"""

_DELIVERED = """
INSERT INTO outbox_sinks (sink, delivered) VALUES ('default', $1)
ON CONFLICT (sink) DO UPDATE SET delivered = excluded.delivered
"""


async def fill(database: str, published: int, pending: int) -> None:
    link = await asyncpg.connect(database)
    await link.execute("TRUNCATE outbox")
    await link.execute(FILL, published + pending, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
    if published:
        await link.execute(_PUBLISHED, published)
    # Numbers go on after the last one, as they would had a relay published these.
    await link.execute(_DELIVERED, published)
    await link.execute("VACUUM ANALYZE outbox")
    # What filling left to be written is no part of the measurement.
    await link.execute("CHECKPOINT")
    await link.close()


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
    """In turn, on one server whose disk has settled: both meet the broker in the same mood."""
    rates: dict[str, list[float]] = {name: [] for name in tables}
    grown = []
    small, *_ = tables
    for number in range(rounds + 1):
        await fill(tables[small], 0, count)
        for name, database in tables.items():
            rate, megabytes = await drain(services, database, count)
            if number:  # the first of each is for the caches
                rates[name].append(rate)
                grown.append(megabytes)
    return rows_of(rates, [small]), max(grown)


def _as_for_a_big_table(services: Services) -> None:
    """The defaults are for a table of some megabytes; both cases get the same."""
    for setting in ("shared_buffers = '1GB'", "max_wal_size = '8GB'"):
        services.postgres.psql(f"ALTER SYSTEM SET {setting}")
    services.postgres.stop()
    services.postgres.start()


def run(
    rounds: int = 7, count: int = 50_000, published: int = 5_000_000, pending: int = 1_000_000
) -> dict[str, list[Row]]:
    with Services() as services:
        _as_for_a_big_table(services)
        server = services.postgres.url
        with outbox_database(server, "small") as small, outbox_database(server, "big") as big:
            # So many more that as many are pending to the end.
            asyncio.run(fill(big, published, pending + (rounds + 1) * count))
            named = {"empty table": small, f"{published:,} published, {pending:,} pending": big}
            rows, grown = asyncio.run(_run(services, named, count, rounds))
    show("relay to RabbitMQ on a big table", rows)
    print(f"  memory grew by {grown:.1f} MB at most while {count:,} events were drained")
    save("big_table", {"big table": rows}, {"rounds": rounds, "count": count, "megabytes": grown})
    return {"big table": rows}

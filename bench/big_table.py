"""The relay on a table that holds millions of rows already, beside an empty one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import psutil
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD, topology
from bench.relay import BATCH, EXCHANGE, FILL
from outrider import OutboxRelay, RelayConfig, SqlOutbox, create_all
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.signals import BatchPublished, Signal
from outrider.testing.services import Services

_PUBLISHED = """
UPDATE outbox SET status = 'published', published_at = now(), delivery = position
WHERE position <= (SELECT min(position) + $1 - 1 FROM outbox)
"""

_DELIVERED = """
INSERT INTO outbox_sinks (sink, delivered) VALUES ('default', $1)
ON CONFLICT (sink) DO UPDATE SET delivered = excluded.delivered
"""


async def fill(services: Services, published: int, pending: int) -> None:
    link = await asyncpg.connect(services.postgres.url)
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


async def drain(services: Services, engine: AsyncEngine, count: int) -> tuple[float, float]:
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
    config = RelayConfig(batch_size=BATCH, retention=None)
    relay = OutboxRelay(SqlOutbox(engine), publisher, config, on_signal=watch)
    before, started = process.memory_info().rss, time.perf_counter()
    async with relay:
        await done.wait()
        rate = accepted / (time.perf_counter() - started)
    return rate, (process.memory_info().rss - before) / 1e6


async def _drain_and_purge(
    services: Services, engine: AsyncEngine, count: int
) -> tuple[float, float]:
    # A long queue slows the broker down, so each measurement begins with an empty one.
    result = await drain(services, engine, count)
    services.rabbitmq.ctl("purge_queue", "-p", services.rabbitmq.name, EXCHANGE)
    return result


async def _run(services: Services, rounds: int, count: int, published: int, pending: int) -> Any:
    url = services.postgres.url.replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    await create_all(engine)
    empty, full = "empty table", f"{published:,} published, {pending:,} pending"
    rates: dict[str, list[float]] = {empty: [], full: []}
    grown = []
    for _ in range(rounds):
        await fill(services, 0, count)
        rates[empty].append((await _drain_and_purge(services, engine, count))[0])
        await fill(services, published, pending)
        rate, megabytes = await _drain_and_purge(services, engine, count)
        rates[full].append(rate)
        grown.append(megabytes)
    await engine.dispose()
    return rows_of(rates, [empty]), grown


def _as_for_a_big_table(services: Services) -> None:
    """The defaults are for a table of some megabytes; both cases get the same."""
    for setting in ("shared_buffers = '1GB'", "max_wal_size = '8GB'"):
        services.postgres.psql(f"ALTER SYSTEM SET {setting}")
    services.postgres.stop()
    services.postgres.start()


def run(
    rounds: int = 3, count: int = 100_000, published: int = 5_000_000, pending: int = 1_000_000
) -> dict[str, list[Row]]:
    with Services() as services:
        _as_for_a_big_table(services)
        rows, grown = asyncio.run(_run(services, rounds, count, published, pending))
    show("relay to RabbitMQ on a big table", rows)
    print(f"  memory grew by {max(grown):.1f} MB at most while {count:,} events were drained")
    tables = {"big table": rows}
    save("big_table", tables, {"rounds": rounds, "count": count, "megabytes": max(grown)})
    return tables

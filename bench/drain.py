"""Draining a table full of pending events: is the rate steady, is memory flat?"""

from __future__ import annotations

import asyncio
import os
import time

import asyncpg
import psutil
from sqlalchemy.ext.asyncio import create_async_engine

from bench.cases import FIRST_QUARTER, LAST_QUARTER, TO_NOWHERE, TO_RABBITMQ
from bench.databases import for_engine, outbox_on
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD
from bench.relay import BATCH, EXCHANGE, FILL, Nowhere
from outrider import OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQPublisher, Topology
from outrider.observability import BatchPublished, Signal
from outrider.ports import EventPublisher
from outrider.testing.services import Services

PENDING = 10_000_000 if os.environ.get("OUTRIDER_FULL") else 500_000
RABBITMQ_SHARE = 0.1
"""The part of the events that is also drained to RabbitMQ, which is slower."""
SLICES = 40
FILL_STEP = 500_000

# A short queue that drops the oldest messages: a long one would slow the broker down.
_SHORT = Queue(
    f"{EXCHANGE}_short",
    (Binding(EXCHANGE),),
    arguments={"x-max-length": 10_000, "x-overflow": "drop-head"},
)


async def fill(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("TRUNCATE outbox")
    for at in range(0, count, FILL_STEP):
        some = min(FILL_STEP, count - at)
        await connection.execute(FILL, some, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
    await connection.execute("VACUUM ANALYZE outbox")
    # Write dirty pages now, so that filling the table is not measured.
    await connection.execute("CHECKPOINT")
    await connection.close()


class Slices:
    """Notes time and memory each time when one slice of the events was published."""

    def __init__(self, count: int) -> None:
        self._count, self._each, self._accepted = count, max(1, count // SLICES), 0
        self._process, self._started = psutil.Process(), time.perf_counter()
        self._last, self._from = self._started, 0
        self.found: list[dict[str, float]] = []
        self.done = asyncio.Event()

    def watch(self, signal: Signal) -> None:
        if not isinstance(signal, BatchPublished):
            return
        self._accepted += len(signal.accepted)
        if self._accepted - self._from >= self._each or self._accepted >= self._count:
            self._note(time.perf_counter())
        if self._accepted >= self._count:
            self.done.set()

    def _note(self, now: float) -> None:
        self.found.append(
            {
                "events": self._accepted,
                "seconds": round(now - self._started, 2),
                "per_second": round((self._accepted - self._from) / (now - self._last)),
                "megabytes": round(self._process.memory_info().rss / 1e6, 1),
            }
        )
        self._last, self._from = now, self._accepted


async def drain(url: str, publisher: EventPublisher, count: int) -> list[dict[str, float]]:
    await fill(url, count)
    await publisher.open()
    engine, slices = create_async_engine(for_engine(url)), Slices(count)
    config = RelayConfig(batch_size=BATCH, retention=None)
    async with OutboxRelay(SqlOutboxStore(engine), publisher, config, on_signal=slices.watch):
        await slices.done.wait()
    await engine.dispose()
    return slices.found


def quarters(found: list[dict[str, float]]) -> dict[str, list[float]]:
    """The rates of each slice, by the quarter in which it came."""
    size = max(1, len(found) // 4)
    names = (FIRST_QUARTER, "second quarter", "third quarter", LAST_QUARTER)
    cut = [found[at * size : (at + 1) * size if at < 3 else None] for at in range(4)]
    return {
        name: [slice_["per_second"] for slice_ in part]
        for name, part in zip(names, cut, strict=True)
        if part
    }


def run(count: int = PENDING, services: Services | None = None) -> dict[str, list[Row]]:
    with outbox_on(services, "bench_drain") as (servers, url):
        amqp = servers.rabbitmq.url
        broker = RabbitMQPublisher(amqp, exchange=EXCHANGE, topology=Topology(queues=(_SHORT,)))
        found = {
            TO_NOWHERE: asyncio.run(drain(url, Nowhere(), count)),
            TO_RABBITMQ: asyncio.run(drain(url, broker, max(SLICES, int(count * RABBITMQ_SHARE)))),
        }
    tables = {title: rows_of(quarters(part), [FIRST_QUARTER]) for title, part in found.items()}
    for title, part in found.items():
        megabytes = [slice_["megabytes"] for slice_ in part]
        show(f"{title}, {int(part[-1]['events']):,} events drained in one go", tables[title])
        print(f"  memory: {megabytes[0]:.1f} MB at first, {max(megabytes):.1f} MB at most")
    save("drain", tables, {"count": count, "batch": BATCH, "slices": found})
    return tables

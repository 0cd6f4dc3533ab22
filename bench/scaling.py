"""One, two and four relays, each a process, when the broker is the slow part."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from bench.cases import SLOW_BROKER
from bench.cases import relays as relays_case
from bench.databases import for_engine, outbox_database
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD
from bench.relay import FILL, Nowhere
from outrider import EventEnvelope, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.testing.services import Services

RELAYS = (1, 2, 4)
CONFIG = RelayConfig()
DELAY = 0.05
"""Seconds that the broker takes for a batch."""
DEADLINE_S = 120.0

_SHARES = "SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL GROUP BY owner"
_PENDING = "SELECT FROM outbox WHERE status = 'pending' LIMIT 1"
_SECONDS = "SELECT extract(epoch FROM max(published_at) - $1)::float FROM outbox"


class SlowBroker(Nowhere):
    """Takes the same time for every batch, however many relays there are."""

    async def publish_all(self, _: Sequence[EventEnvelope], /) -> None:
        await asyncio.sleep(DELAY)


async def _relay(url: str) -> None:
    engine, stop = create_async_engine(for_engine(url)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with OutboxRelay(SqlOutboxStore(engine), SlowBroker(), CONFIG):
        await stop.wait()
    await engine.dispose()


def relay(url: str) -> None:
    asyncio.run(_relay(url))


@contextmanager
def relays(url: str, number: int) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=relay, args=(url,)) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


async def drained(url: str, number: int, count: int) -> float:
    """Events a second by the database's clock, once every relay has its share of the lanes."""
    connection = await asyncpg.connect(url)

    async def shared() -> bool:
        shares = [share for (share,) in await connection.fetch(_SHARES)]
        return len(shares) == number and min(shares) >= 64 // number

    async def empty() -> bool:
        return not await connection.fetch(_PENDING)

    await connection.execute("TRUNCATE outbox")
    await until(shared)
    await connection.execute(FILL, count, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
    started = await connection.fetchval("SELECT clock_timestamp()")
    await connection.execute("SELECT pg_notify('outbox_channel', '')")
    await until(empty)
    seconds = await connection.fetchval(_SECONDS, started)
    await connection.close()
    return float(count / seconds)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < deadline, "the relays took too long"
        await asyncio.sleep(0.05)


def run(
    rounds: int = 3,
    count: int = 20_000,
    numbers: Sequence[int] = RELAYS,
    services: Services | None = None,
) -> dict[str, list[Row]]:
    rates: dict[str, list[float]] = {relays_case(number): [] for number in numbers}
    with ExitStack() as stack:
        server = (services or stack.enter_context(Services())).postgres.url
        url = stack.enter_context(outbox_database(server, "bench_scaling"))
        for _ in range(rounds):
            for number in numbers:
                with relays(url, number):
                    rates[relays_case(number)].append(asyncio.run(drained(url, number, count)))
    tables = {SLOW_BROKER: rows_of(rates, [relays_case(numbers[0])])}
    show(
        f"relays to a broker that takes {DELAY:g} s for a batch of {CONFIG.batch_size}",
        tables[SLOW_BROKER],
    )
    save(
        "scaling",
        tables,
        {"rounds": rounds, "count": count, "batch": CONFIG.batch_size, "delay": DELAY},
    )
    return tables

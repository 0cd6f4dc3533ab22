"""The relay while a forgotten transaction keeps dead rows alive, beside one without it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from bench.cases import FREE, LAST_QUARTER, PINNED
from bench.databases import for_engine, outbox_database
from bench.measure import Row, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD
from bench.relay import BATCH, FILL, Nowhere
from outrider import OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.observability import BatchPublished, Signal
from outrider.testing.services import Services

SECONDS = 600.0 if os.environ.get("OUTRIDER_FULL") else 60.0
STEP = 1.0
"""Seconds between two lots of events, in each database."""
LOT = 2_000
LOT_TIMEOUT_S = 60.0

_PIN = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox'"


class Drained:
    """One database, with a relay that runs during the whole measurement."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection, self._left, self._done = connection, 0, asyncio.Event()

    def watch(self, signal: Signal) -> None:
        if isinstance(signal, BatchPublished):
            self._left -= len(signal.accepted)
            if self._left <= 0:
                self._done.set()

    async def lot(self, count: int) -> float:
        """Events per second, from their commit until the last one is settled.

        What is not settled in time counts for the next lot, so that a stall shows in the rate.
        """
        self._left += count
        self._done.clear()
        await self._connection.execute(FILL, count, EVENT_TYPE, PAYLOAD.decode(), AGGREGATES)
        started = time.perf_counter()
        await self._connection.execute("SELECT pg_notify('outbox_channel', '')")
        with suppress(TimeoutError):
            async with asyncio.timeout(LOT_TIMEOUT_S):
                await self._done.wait()
        return max(0, count - self._left) / (time.perf_counter() - started)

    async def dead_rows(self) -> int:
        return int(await self._connection.fetchval(_DEAD) or 0)


@asynccontextmanager
async def drained(url: str) -> AsyncIterator[Drained]:
    connection, engine = await asyncpg.connect(url), create_async_engine(for_engine(url))
    found = Drained(connection)
    config = RelayConfig(batch_size=BATCH, retention=None)
    async with OutboxRelay(SqlOutboxStore(engine), Nowhere(), config, on_signal=found.watch):
        await found.lot(LOT)  # warms up
        yield found
    await engine.dispose()
    await connection.close()


async def _pin(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url)
    await connection.execute(_PIN)
    await connection.fetch("SELECT count(*) FROM outbox")  # takes the snapshot
    return connection


async def measure(urls: dict[str, str], seconds: float, lot: int) -> dict[str, Any]:
    """One lot to each database in turn, until the time is over."""
    rates: dict[str, list[float]] = {FREE: [], PINNED: []}
    async with AsyncExitStack() as stack:
        free = await stack.enter_async_context(drained(urls[FREE]))
        pinned = await stack.enter_async_context(drained(urls[PINNED]))
        pin = await _pin(urls[PINNED])
        ends = time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            rates[FREE].append(await free.lot(lot))
            rates[PINNED].append(await pinned.lot(lot))
            await asyncio.sleep(max(0.0, now + STEP - time.monotonic()))
        dead = {FREE: await free.dead_rows(), PINNED: await pinned.dead_rows()}
        await pin.close()
    return {"rates": rates, "dead": dead}


def _last_quarter(rates: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: found[-max(1, len(found) // 4) :] for name, found in rates.items()}


def run(
    seconds: float = SECONDS, lot: int = LOT, services: Services | None = None
) -> dict[str, list[Row]]:
    with ExitStack() as stack:
        server = (services or stack.enter_context(Services())).postgres.url
        # What pins the horizon of one database leaves that of another alone.
        urls = {
            name: stack.enter_context(outbox_database(server, f"bench_{name.replace(' ', '_')}"))
            for name in (FREE, PINNED)
        }
        found = asyncio.run(measure(urls, seconds, lot))
    tables = {
        LAST_QUARTER: rows_of(_last_quarter(found["rates"]), [FREE]),
        "all of it": rows_of(found["rates"], [FREE]),
    }
    for title, rows in tables.items():
        show(f"relay to nowhere, {seconds:g} s, {title}", rows)
    print(f"  dead rows at the end: {found['dead']}")
    series = {name: [round(rate) for rate in rates] for name, rates in found["rates"].items()}
    settings = {
        "seconds": seconds,
        "lot": lot,
        "batch": BATCH,
        "dead_rows": found["dead"],
        "series": series,
    }
    save("horizon", tables, settings)
    return tables

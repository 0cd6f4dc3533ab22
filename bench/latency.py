"""How long an event takes from its commit to a consumer; the relay is a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from typing import Any

from pamqp import commands
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from bench.databases import for_engine
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD, RawFrames
from outrider import DomainEvent, Outbox

WARM_UP = 50

_EVENT_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Watcher(RawFrames):
    """Says when each message of an exchange arrives, in the time that all processes share."""

    async def watch(self, exchange: str) -> None:
        for method in (
            commands.Queue.Declare(queue=exchange + "_watched", exclusive=True),
            commands.Queue.Bind(queue=exchange + "_watched", exchange=exchange, routing_key="#"),
            commands.Basic.Consume(queue=exchange + "_watched", no_ack=True),
        ):
            self._send(method, 1)
            await self._answer()
        print("ready", flush=True)
        while data := await self._reader.read(65_536):
            at = time.perf_counter()
            for event_id in set(_EVENT_ID.findall(data)):
                print(event_id.decode(), at, flush=True)


class Arrivals:
    """What the watcher says."""

    def __init__(self, watcher: Process) -> None:
        self._watcher, self._at = watcher, dict[str, float]()
        self._changed = asyncio.Event()

    async def listen(self) -> None:
        assert self._watcher.stdout is not None
        async for line in self._watcher.stdout:
            event_id, at = line.decode().split()
            self._at.setdefault(event_id, float(at))
            self._changed.set()

    async def of(self, event_id: str) -> float:
        async with asyncio.timeout(30):
            while event_id not in self._at:
                self._changed.clear()
                await self._changed.wait()
        return self._at[event_id]


async def _started(watcher: Process) -> Arrivals:
    assert watcher.stdout is not None
    assert await watcher.stdout.readline() == b"ready\n"
    return Arrivals(watcher)


async def latency(
    database: str, amqp: str, exchange: str, events: int, rate: float
) -> tuple[list[float], list[float]]:
    """Seconds from each commit to its arrival, and those of publish and confirm alone."""
    watching = (sys.executable, "-m", "bench.latency", amqp, exchange)
    watcher = await asyncio.create_subprocess_exec(*watching, stdout=PIPE)
    arrivals = await _started(watcher)
    listening = asyncio.create_task(arrivals.listen())
    relay = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider", "relay", "--quiet"),
        env={
            **os.environ,
            "DATABASE_URL": database,
            "RABBITMQ_URL": amqp,
            "RABBITMQ_EXCHANGE": exchange,
        },
    )
    try:
        committed = await _committed(database, arrivals, events, rate)
        taken = [await arrivals.of(event_id) - at for event_id, at in committed.items()]
    finally:
        listening.cancel()
        for process in (relay, watcher):
            process.terminate()
            await process.wait()
    return taken[WARM_UP:], await _round_trips(amqp, exchange, min(events, 300))


async def _committed(
    database: str, arrivals: Arrivals, events: int, rate: float
) -> dict[str, float]:
    engine = create_async_engine(for_engine(database))
    outbox, committed = Outbox(), dict[str, float]()
    for number in range(events + WARM_UP):
        event = DomainEvent(EVENT_TYPE, "order", number % AGGREGATES, {"n": number})
        async with AsyncSession(engine) as session:
            await session.begin()
            outbox.record(session, event)
            await session.commit()
            committed[str(event.event_id)] = time.perf_counter()
        if number < WARM_UP:
            await arrivals.of(str(event.event_id))
        await asyncio.sleep(1 / rate)
    await engine.dispose()
    return committed


async def _round_trips(url: str, exchange: str, count: int) -> list[float]:
    raw, taken = RawFrames(exchange), []
    async with await raw.open(url):
        for number in range(count):
            message = raw.message(str(number), "order-1", "now", PAYLOAD)
            started = time.perf_counter()
            await raw.publish([message])
            taken.append(time.perf_counter() - started)
    return taken


def percentiles(taken: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {"p50 ms": round(cuts[49] * 1000, 2), "p99 ms": round(cuts[98] * 1000, 2)}


async def _watch(url: str, exchange: str) -> Any:
    async with await Watcher(exchange).open(url) as watcher:
        await watcher.watch(exchange)


if __name__ == "__main__":
    asyncio.run(_watch(*sys.argv[1:]))

"""What the drivers of all libraries share; each runs in the environment of its library alone."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import asyncpg

EVENT_TYPE = "bench.order_shipped"
PAYLOAD_BYTES = 300


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure."""

    postgres: str
    amqp: str | None
    """Where to publish; None publishes nowhere."""
    exchange: str
    count: int
    aggregates: int
    tuned: bool
    failing: list[int] = field(default_factory=list)
    """The numbers of the events that fail when they are tried for the first time."""
    seconds: float = 300.0
    """When to give up."""

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Each with its aggregate, in the order in which they happened."""
        return [(f"order-{n % self.aggregates}", self._body(n)) for n in range(self.count)]

    def _body(self, number: int) -> dict[str, Any]:
        body = {"number": number, "aggregate": number % self.aggregates, "note": ""}
        return {**body, "note": "x" * (PAYLOAD_BYTES - len(json.dumps(body)))}


class TransientFailure(Exception):
    """As if the broker had been away for a moment."""


class Sink:
    """Where a library's own function sends an event: persistent, mandatory, confirmed."""

    def __init__(self, task: Task, exchange: aio_pika.abc.AbstractExchange | None) -> None:
        self._exchange, self._left = exchange, task.count
        self._failing = set(task.failing)
        self.all = asyncio.Event()

    def fail_once(self, body: bytes | dict[str, Any]) -> None:
        if self._failing:
            number = (body if isinstance(body, dict) else json.loads(body))["number"]
            if number in self._failing:
                self._failing.discard(number)
                raise TransientFailure

    async def send(self, body: bytes | dict[str, Any]) -> None:
        self.fail_once(body)
        if self._exchange is not None:
            message = aio_pika.Message(
                json.dumps(body).encode() if isinstance(body, dict) else body,
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await self._exchange.publish(message, routing_key=EVENT_TYPE)
        self.count()

    def count(self, events: int = 1) -> None:
        self._left -= events
        if self._left <= 0:
            self.all.set()


@asynccontextmanager
async def opened_sink(task: Task) -> AsyncIterator[Sink]:
    async with AsyncExitStack() as stack:
        exchange = None
        if task.amqp:
            connection = await stack.enter_async_context(await aio_pika.connect(task.amqp))
            channel = await connection.channel(on_return_raises=True)
            exchange = await channel.get_exchange(task.exchange, ensure=False)
        yield Sink(task, exchange)


Fill = Callable[[Task], Awaitable[None]]
Working = Callable[[Task, Sink], AbstractAsyncContextManager[Any]]


async def measure(task: Task, fill: Fill, working: Working, pending: str) -> dict[str, Any]:
    """Seconds from the worker's start until no event is left to deliver."""
    await fill(task)
    connection = await asyncpg.connect(task.postgres)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    async with opened_sink(task) as sink:
        started = time.perf_counter()
        async with working(task, sink):
            ended = await _until_done(connection, sink, pending, started + task.seconds)
    left = await connection.fetchval(f"SELECT count(*) FROM ({pending}) AS pending")  # noqa: S608 - our own words
    await connection.close()
    return {"seconds": ended - started, "left": left}


async def _until_done(
    connection: asyncpg.Connection, sink: Sink, pending: str, limit: float
) -> float:
    """Looks rarely while events are on their way, often once all of them were seen."""
    while time.perf_counter() < limit:
        with suppress(TimeoutError):
            await asyncio.wait_for(sink.all.wait(), 0.5)
        if not await connection.fetchval(f"SELECT EXISTS ({pending})"):
            break
        await asyncio.sleep(0.01)
    return time.perf_counter()


def run(fill: Fill, working: Working, pending: str) -> None:
    """A task comes in as JSON, the result goes out as JSON."""
    task = Task(**json.load(sys.stdin))
    found = asyncio.run(measure(task, fill, working, pending))
    print(json.dumps({**found, "python": sys.version.split()[0]}))


@asynccontextmanager
async def in_background(work: Awaitable[Any]) -> AsyncIterator[None]:
    """Cancelled at the end."""
    running = asyncio.ensure_future(work)
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

"""How fast messages come out of RabbitMQ: aio-pika, frames by hand, our source, our consumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

import aio_pika
from pamqp import commands

from bench.measure import Row, interleave, save, show
from bench.rabbitmq_raw import BATCH, PAYLOAD, RawFrames, events
from outrider import ConsumerConfig, EventConsumer, EventEnvelope
from outrider.brokers.rabbitmq import (
    Binding,
    Queue,
    RabbitMQPublisher,
    RabbitMQSource,
    RabbitMQSourceConfig,
    Topology,
)
from outrider.testing.services import Services

QUEUE = "bench_consume"
PREFETCH = 256
AT_ONCE = 16

AIO_PIKA = "aio-pika, consume and ack"
BY_HAND = "frames by hand"
SOURCE = "RabbitMQSource"
CONSUMER = "EventConsumer"

TOPOLOGY = Topology(queues=(Queue(QUEUE, (Binding(QUEUE),), single_active_consumer=True),))


async def with_aio_pika(url: str, count: int) -> float:
    done, left = asyncio.Event(), count

    async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        nonlocal left
        await message.ack()
        left -= 1
        if not left:
            done.set()

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(QUEUE, ensure=False)
        started = time.perf_counter()
        await queue.consume(handle)
        await done.wait()
        return count / (time.perf_counter() - started)


class RawConsumer(RawFrames):
    """No event is made of anything, and all that was read is acknowledged with one word."""

    async def consume(self, queue: str, count: int) -> None:
        self._send(commands.Basic.Qos(prefetch_count=PREFETCH), 1)
        self._send(commands.Basic.Consume(queue=queue), 1)
        unread, last = b"", 0
        while last < count:
            unread += await self._reader.read(262_144)
            at = told = 0
            while len(unread) >= at + 7 and len(unread) >= (after := at + 8 + _size(unread, at)):
                # Each message of this benchmark ends with its only body frame.
                told, at = told + (unread[at] == 3), after
            unread = unread[at:]
            if told:
                last += told
                self._send(commands.Basic.Ack(last, multiple=True), 1)


def _size(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 3 : at + 7], "big")


async def by_hand(url: str, count: int) -> float:
    raw = RawConsumer(QUEUE)
    async with await raw.open(url):
        started = time.perf_counter()
        await raw.consume(QUEUE, count)
        return count / (time.perf_counter() - started)


async def with_source(url: str, count: int) -> float:
    """Acknowledged side by side, as handlers of different aggregates do it."""
    config = RabbitMQSourceConfig(prefetch=PREFETCH)
    async with RabbitMQSource(url, queue=QUEUE, topology=TOPOLOGY, config=config) as source:
        started, left = time.perf_counter(), count

        async def settle(deliveries: Any) -> None:
            for delivery in deliveries:
                await source.acknowledge(delivery)

        while left > 0:
            found = await source.receive(PREFETCH)
            left -= len(found)
            await asyncio.gather(*(settle(found[at::AT_ONCE]) for at in range(AT_ONCE)))
        return count / (time.perf_counter() - started)


async def with_consumer(url: str, count: int) -> float:
    """A handler that does nothing, in a task of its own for every event."""
    done, left = asyncio.Event(), count

    class Nothing:
        name = "nothing"

        async def handle(self, _: EventEnvelope, /) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

    source = RabbitMQSource(url, queue=QUEUE, topology=TOPOLOGY)
    started = time.perf_counter()
    async with EventConsumer(source, [("*", Nothing())], ConsumerConfig(concurrency=AT_ONCE)):
        await done.wait()
        return count / (time.perf_counter() - started)


async def _filled(url: str, count: int) -> None:
    """With nothing before it that another case has left there."""
    async with RabbitMQPublisher(url, exchange=QUEUE, topology=TOPOLOGY) as publisher:
        async with await aio_pika.connect(url) as connection:
            await (await (await connection.channel()).get_queue(QUEUE)).purge()
        batch = events(count)
        for at in range(0, count, BATCH):
            await publisher.publish_all(batch[at : at + BATCH])


def run(
    rounds: int = 7, count: int = 20_000, services: Services | None = None
) -> dict[str, list[Row]]:
    cases: dict[str, Callable[[str, int], Coroutine[Any, Any, float]]] = {
        AIO_PIKA: with_aio_pika,
        BY_HAND: by_hand,
        SOURCE: with_source,
        CONSUMER: with_consumer,
    }
    with ExitStack() as stack:
        url = (services or stack.enter_context(Services())).rabbitmq.url
        runner = stack.enter_context(asyncio.Runner())

        def one(name: str) -> float:
            runner.run(_filled(url, count))
            return runner.run(cases[name](url, count))

        slices = {name: partial(one, name) for name in cases}
        rows = interleave(slices, beside=[AIO_PIKA, BY_HAND], rounds=rounds)
    tables = {
        f"RabbitMQ, {count:,} events of {len(PAYLOAD)} bytes, received and acknowledged": rows
    }
    for title, table in tables.items():
        show(title, table)
    save("rabbitmq_consume", tables, {"rounds": rounds, "events": count, "prefetch": PREFETCH})
    return tables


if __name__ == "__main__":
    run()

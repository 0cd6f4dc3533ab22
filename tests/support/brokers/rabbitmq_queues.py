"""Queues of a real RabbitMQ, read by aio-pika directly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from outrider import EventEnvelope
from outrider.brokers import PublishFailed
from outrider.brokers.rabbitmq import (
    Binding,
    Queue,
    RabbitMQConfig,
    RabbitMQPublisher,
    Topology,
)
from outrider.outcomes import ACCEPTED, Accepted, Outcome
from outrider.testing.services import Server
from tests.support.until import wait_until


def unique(what: str = "test") -> str:
    return f"{what}.{uuid4().hex}"


def one_queue(name: str, **settings: object) -> Topology:
    """An exchange and a queue of the same name, bound to all routing keys."""
    return Topology(queues=(Queue(name, (Binding(name),), **settings),))  # type: ignore[arg-type]


@asynccontextmanager
async def publishing(
    url: str, name: str, topology: Topology | None = None, config: RabbitMQConfig | None = None
) -> AsyncIterator[RabbitMQPublisher]:
    publisher = RabbitMQPublisher(
        url, exchange=name, topology=topology or one_queue(name), config=config
    )
    try:
        yield publisher
    finally:
        await publisher.close()


async def outcomes_of(publisher: RabbitMQPublisher, batch: list[EventEnvelope]) -> list[Outcome]:
    try:
        await publisher.publish_all(batch)
    except PublishFailed as failed:
        return list(failed.outcomes)  # type: ignore[arg-type]
    return [ACCEPTED] * len(batch)


def kinds(outcomes: Iterable[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


async def messages_in(url: str, queue: str) -> list[AbstractIncomingMessage]:
    """Take all messages out of the queue; a marker message shows its end."""
    found: list[AbstractIncomingMessage] = []
    last, done = uuid4().hex, asyncio.Event()

    async def take(message: AbstractIncomingMessage) -> None:
        await message.ack()
        if message.message_id == last:
            done.set()
        else:
            found.append(message)

    await _put_last(url, queue, last)
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1000)
        await (await channel.get_queue(queue)).consume(take)
        await asyncio.wait_for(done.wait(), 30)
    return found


async def _put_last(url: str, queue: str, message_id: str) -> None:
    """A quorum queue that has just started loses messages that arrive before it has a leader."""
    message = aio_pika.Message(b"", message_id=message_id)
    for patience in (1, 3, 10):
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            with suppress(TimeoutError):
                await channel.default_exchange.publish(message, queue, timeout=patience)
                return
    raise TimeoutError(f"queue {queue} takes nothing")


async def noted_on_disk(broker: Server, queue: str) -> None:
    """Wait until RabbitMQ 3.10 has written the quorum queue to disk; a kill before loses it."""

    def noted() -> bool:
        return any(
            queue.encode() in path.read_bytes() for path in broker.folder.rglob("names.dets")
        )

    assert await asyncio.to_thread(wait_until, noted, 20)


def assert_accepted_are_a_prefix(batch: list[EventEnvelope], outcomes: list[Outcome]) -> None:
    per_aggregate = defaultdict(list)
    for envelope, outcome in zip(batch, outcomes, strict=True):
        per_aggregate[envelope.aggregate_id].append(isinstance(outcome, Accepted))
    for accepted in per_aggregate.values():
        assert accepted == sorted(accepted, reverse=True)

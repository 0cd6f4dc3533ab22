"""Reads a durable queue of RabbitMQ, and keeps every delivery."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple
from uuid import UUID, uuid4

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage


class Delivery(NamedTuple):
    id: UUID
    aggregate: str
    n: int
    replay: str | None = None


class Reader:
    """Every delivery in the order of arrival. It ends with its broker: start it again then."""

    def __init__(self, url: str, queue: str) -> None:
        self.deliveries: list[Delivery] = []
        self._ids: set[UUID] = set()
        self._url, self._queue = url, queue
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._marks: dict[str, asyncio.Event] = {}

    async def prepare(self, binding: str) -> None:
        """Create a durable queue and a topic exchange of the same name."""
        async with await aio_pika.connect(self._url) as connection:
            channel = await connection.channel()
            kind = aio_pika.ExchangeType.TOPIC
            exchange = await channel.declare_exchange(self._queue, kind, durable=True)
            queue = await channel.declare_queue(self._queue, durable=True)
            await queue.bind(exchange, binding)

    async def start(self) -> None:
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel()
        queue = await self._channel.get_queue(self._queue)
        # Without acknowledgements this reader itself causes no duplicates.
        await queue.consume(self._take, no_ack=True)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def has(self, ids: set[UUID]) -> bool:
        return ids <= self._ids

    async def count(self) -> int:
        return len(self.deliveries)

    async def silence(self) -> None:
        """Return when no more messages come: two markers arrive with nothing between them."""
        before = -1
        while before != len(self.deliveries):
            before = len(self.deliveries)
            await self.mark()
            await asyncio.sleep(0.2)  # the socket of a killed relay may still have data
            await self.mark()

    async def mark(self) -> None:
        """Return when all current messages of the queue are read."""
        assert self._channel is not None, "the reader was not started"
        name = uuid4().hex
        self._marks[name] = asyncio.Event()
        message = aio_pika.Message(b"", message_id=name)
        await self._channel.default_exchange.publish(message, routing_key=self._queue)
        await asyncio.wait_for(self._marks[name].wait(), 60)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        if mark := self._marks.get(message.message_id or ""):
            mark.set()
            return
        delivery = Delivery(
            UUID(message.message_id),
            str(message.headers["aggregate_id"]),
            json.loads(message.body)["n"],
            message.headers.get("ce-replayid"),  # type: ignore[arg-type] # a text, or not there
        )
        self.deliveries.append(delivery)
        self._ids.add(delivery.id)

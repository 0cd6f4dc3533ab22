"""Reads the log of Kafka, NATS or Redis, in its order, while it grows."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any
from uuid import UUID

from aiokafka import AIOKafkaConsumer, TopicPartition
from nats.aio.client import Client
from nats.errors import TimeoutError as NothingThere
from redis.asyncio import Redis

from outrider.brokers.nats import NatsPublisher
from tests.support.brokers.kafka_topics import create, servers
from tests.support.faults.queue_reader import Delivery, Reader


class LogReader(ABC):
    """Like the reader of a queue. It ends with its broker: start it again afterwards."""

    def __init__(self, url: str, name: str) -> None:
        self.deliveries: list[Delivery] = []
        self._ids: set[UUID] = set()
        self._url, self._name = url, name
        self._following: asyncio.Task[None] | None = None

    async def prepare(self, binding: str) -> None:  # noqa: B027 - some need nothing
        """Create the topic or stream."""

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    async def more(self) -> list[tuple[str, str, bytes]]:
        """The next messages: id, aggregate and body; nothing after a short wait."""

    @abstractmethod
    async def has_read_all(self) -> bool: ...

    @abstractmethod
    async def disconnect(self) -> None: ...

    async def start(self) -> None:
        await self.connect()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
            await self.disconnect()

    def has(self, ids: set[UUID]) -> bool:
        return ids <= self._ids

    async def mark(self) -> None:
        """Return when all current messages of the log are read."""
        async with asyncio.timeout(60):
            while not await self.has_read_all():
                assert self._following is not None
                assert not self._following.done(), self._following.exception()
                await asyncio.sleep(0.02)

    async def silence(self) -> None:
        """Return when no more messages come; all relays have ended before."""
        before = -1
        while before != len(self.deliveries):
            before = len(self.deliveries)
            await asyncio.sleep(0.2)  # the socket of a killed relay may still have data
            await self.mark()

    async def _follow(self) -> None:
        while True:
            for event_id, aggregate, body in await self.more():
                delivery = Delivery(UUID(event_id), aggregate, json.loads(body)["n"])
                self.deliveries.append(delivery)
                self._ids.add(delivery.id)


class RedisReader(LogReader):
    async def connect(self) -> None:
        self._client, self._last = Redis.from_url(self._url), b"0"

    async def disconnect(self) -> None:
        await self._client.aclose()

    async def has_read_all(self) -> bool:
        return not await self._client.xread({self._name: self._last}, count=1)

    async def more(self) -> list[tuple[str, str, bytes]]:
        found = await self._client.xread({self._name: self._last}, count=1000, block=50)
        entries = found[0][1] if found else []
        taken = [_from_fields(fields) for _, fields in entries]
        if entries:
            self._last = entries[-1][0]
        return taken


def _from_fields(fields: dict[bytes, bytes]) -> tuple[str, str, bytes]:
    return fields[b"ce-id"].decode(), fields[b"ce-subject"].decode(), fields[b"data"]


class NatsReader(LogReader):
    async def prepare(self, binding: str) -> None:
        async with NatsPublisher(self._url, stream=self._name, subject=self._name):
            pass

    async def connect(self) -> None:
        self._client, self._last = Client(), 0
        await self._client.connect(self._url)
        self._stream = self._client.jetstream()
        self._log = await self._stream.subscribe("", stream=self._name, ordered_consumer=True)

    async def disconnect(self) -> None:
        await self._client.close()

    async def has_read_all(self) -> bool:
        return (await self._stream.stream_info(self._name)).state.last_seq <= self._last

    async def more(self) -> list[tuple[str, str, bytes]]:
        try:
            message = await self._log.next_msg(timeout=1)
        except NothingThere:
            return []
        self._last = message.metadata.sequence.stream
        headers: dict[str, Any] = message.headers or {}
        return [(headers["ce-id"], headers["ce-subject"], message.data)]


class KafkaReader(LogReader):
    PARTITIONS = 4

    async def prepare(self, binding: str) -> None:
        await create(self._url, self._name, self.PARTITIONS)

    async def connect(self) -> None:
        self._client = AIOKafkaConsumer(bootstrap_servers=servers(self._url))
        await self._client.start()
        self._places = [TopicPartition(self._name, n) for n in range(self.PARTITIONS)]
        self._client.assign(self._places)
        await self._client.seek_to_beginning(*self._places)

    async def disconnect(self) -> None:
        await self._client.stop()

    async def has_read_all(self) -> bool:
        ends = await self._client.end_offsets(self._places)
        here = [await self._client.position(place) for place in self._places]
        return all(at >= ends[place] for place, at in zip(self._places, here, strict=True))

    async def more(self) -> list[tuple[str, str, bytes]]:
        found = await self._client.getmany(timeout_ms=50)
        records = [record for part in found.values() for record in part]
        return [(_header(r, "ce_id"), _header(r, "ce_subject"), r.value) for r in records]


def _header(record: Any, name: str) -> str:
    return str(dict(record.headers)[name].decode())


READERS = {"amqp": Reader, "kafka": KafkaReader, "nats": NatsReader, "redis": RedisReader}


def reader_of(url: str, name: str) -> Reader | LogReader:
    return READERS[url.partition("://")[0]](url, name)

"""How fast RabbitMQ itself is: aio-pika, frames marshalled by hand, and our publisher."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import aio_pika
from pamqp import base, commands, frame

from bench.measure import Row, interleave, save, show
from outrider import EventEnvelope, EventId
from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQPublisher, Topology
from outrider.testing.services import Services

EVENT_TYPE = "bench.order_shipped"
PAYLOAD = b'{"note":"' + b"x" * 289 + b'"}'
AGGREGATES = 997
IN_FLIGHT = 500
BATCH = 1_000

AIO_PIKA = "aio-pika, 500 in flight"
BY_HAND = "frames by hand"
OURS = "RabbitMQPublisher"
OVERLAPPING = "RabbitMQPublisher, two calls at once"

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQH")
_INDEX = struct.Struct(">I")
_CONFIRM = struct.Struct(">QB")
_ACK = commands.Basic.Ack.index


def events(count: int) -> list[EventEnvelope]:
    now = datetime.now(UTC)
    return [
        EventEnvelope(
            event_id=EventId.new(),
            event_type=EVENT_TYPE,
            aggregate_type="order",
            aggregate_id=f"order-{number % AGGREGATES}",
            occurred_at=now,
            data=PAYLOAD,
        )
        for number in range(count)
    ]


def topology(exchange: str) -> Topology:
    return Topology(queues=(Queue(exchange, (Binding(exchange),)),))


class RawFrames:
    """No ordering, no outcome per message, no deadline: only what the broker has to be sent."""

    def __init__(self, exchange: str) -> None:
        publish = commands.Basic.Publish(exchange=exchange, routing_key=EVENT_TYPE, mandatory=True)
        self._publish = frame.marshal(publish, 1)
        self._headers = _table(
            (b"ce-specversion", b"1.0"),
            (b"ce-source", b"bench"),
            (b"ce-type", EVENT_TYPE.encode()),
            (b"ce-aggregatetype", b"order"),
            (b"ce-eventversion", b"1"),
            (b"event_type", EVENT_TYPE.encode()),
            (b"aggregate_type", b"order"),
        )

    def message(self, event_id: str, aggregate_id: str, created_at: str, body: bytes) -> bytes:
        """With the properties and headers that a CloudEvent and a usual service have."""
        number, aggregate, created = event_id.encode(), aggregate_id.encode(), created_at.encode()
        headers = self._headers + _table(
            (b"ce-id", number),
            (b"ce-subject", aggregate),
            (b"ce-time", created),
            (b"aggregate_id", aggregate),
            (b"created_at", created),
        )
        header = b"".join(
            (
                _CONTENT.pack(60, 0, len(body), 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7),
                b"\x10application/json",
                struct.pack(">I", len(headers)),
                headers,
                b"\x02",
                bytes((len(number),)) + number,
            )
        )
        return b"".join(
            (
                self._publish,
                _FRAME.pack(2, 1, len(header)) + header + b"\xce",
                _FRAME.pack(3, 1, len(body)) + body + b"\xce",
            )
        )

    async def open(self, url: str) -> Self:
        parts = urlsplit(url)
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port)
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        await self._answer()
        login = f"\0{unquote(parts.username or '')}\0{unquote(parts.password or '')}"
        self._send(commands.Connection.StartOk(client_properties={}, response=login), 0)
        await self._answer()
        self._send(commands.Connection.TuneOk(1, 131_072, 0), 0)
        for method, channel in (
            (commands.Connection.Open(virtual_host=unquote(parts.path[1:])), 0),
            (commands.Channel.Open(), 1),
            (commands.Confirm.Select(), 1),
        ):
            self._send(method, channel)
            await self._answer()
        self._sent = 0
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Write all at once and count confirms until the broker has every one."""
        self._writer.write(b"".join(messages))
        await self._writer.drain()
        first, self._sent = self._sent + 1, self._sent + len(messages)
        waiting, unread = set(range(first, self._sent + 1)), b""
        while waiting:
            unread += await self._reader.read(262_144)
            whole = len(unread) // 21 * 21
            for at in range(0, whole, 21):
                assert _INDEX.unpack_from(unread, at + 7)[0] == _ACK
                tag, multiple = _CONFIRM.unpack_from(unread, at + 11)
                if multiple:
                    waiting.difference_update(range(first, tag + 1))
                    first = tag + 1
                else:
                    waiting.discard(tag)
            unread = unread[whole:]

    def _send(self, method: base.Frame, channel: int) -> None:
        self._writer.write(frame.marshal(method, channel))

    async def _answer(self) -> None:
        _, _, size = _FRAME.unpack(await self._reader.readexactly(7))
        await self._reader.readexactly(size + 1)


def _table(*entries: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        bytes((len(name),)) + name + b"S" + struct.pack(">I", len(value)) + value
        for name, value in entries
    )


async def aio_pika_in_flight(
    channel: aio_pika.abc.AbstractChannel, exchange: str, count: int
) -> None:
    """As many publish calls at once as a window has room for, each waiting for its confirm."""
    target = await channel.get_exchange(exchange, ensure=False)
    window = asyncio.Semaphore(IN_FLIGHT)

    async def one(event: EventEnvelope) -> None:
        message = aio_pika.Message(
            event.data,
            message_id=str(event.event_id),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers={
                "aggregate_type": event.aggregate_type,
                "aggregate_id": event.aggregate_id,
                "event_type": event.event_type,
                "created_at": event.occurred_at.isoformat(),
            },
        )
        await target.publish(message, routing_key=event.event_type)
        window.release()

    async with asyncio.TaskGroup() as tasks:
        for event in events(count):
            await window.acquire()
            tasks.create_task(one(event))


async def with_aio_pika(url: str, exchange: str, count: int) -> float:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(on_return_raises=True)
        return await _rate(count, aio_pika_in_flight(channel, exchange, count))


async def by_hand(url: str, exchange: str, count: int) -> float:
    raw = RawFrames(exchange)

    async def all_of_them() -> None:
        for batch in _batches(events(count)):
            await raw.publish(
                [
                    raw.message(
                        str(event.event_id),
                        event.aggregate_id,
                        event.occurred_at.isoformat(),
                        event.data,
                    )
                    for event in batch
                ]
            )

    async with await raw.open(url):
        return await _rate(count, all_of_them())


async def with_publisher(url: str, exchange: str, count: int, at_once: int = 1) -> float:
    async with RabbitMQPublisher(url, exchange=exchange) as publisher:
        batches = _batches(events(count))

        async def some() -> None:
            for batch in batches:
                await publisher.publish_all(batch)

        async def all_of_them() -> None:
            await asyncio.gather(*(some() for _ in range(at_once)))

        return await _rate(count, all_of_them())


async def _rate(count: int, work: Coroutine[Any, Any, None]) -> float:
    started = time.perf_counter()
    await work
    return count / (time.perf_counter() - started)


def _batches(envelopes: list[EventEnvelope]) -> Iterator[list[EventEnvelope]]:
    return (envelopes[at : at + BATCH] for at in range(0, len(envelopes), BATCH))


async def emptied(url: str, exchange: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(exchange, ensure=False)).purge()


def run(
    rounds: int = 7, count: int = 20_000, services: Services | None = None
) -> dict[str, list[Row]]:
    exchange = "bench_raw"
    cases: dict[str, Callable[[str, str, int], Coroutine[Any, Any, float]]] = {
        AIO_PIKA: with_aio_pika,
        BY_HAND: by_hand,
        OURS: with_publisher,
        OVERLAPPING: partial(with_publisher, at_once=2),
    }
    with ExitStack() as stack:
        services = services or stack.enter_context(Services())
        url = services.rabbitmq.url
        runner = stack.enter_context(asyncio.Runner())
        setting_up = RabbitMQPublisher(url, exchange=exchange, topology=topology(exchange))
        runner.run(setting_up.open())
        runner.run(setting_up.close())

        def one(name: str) -> float:
            runner.run(emptied(url, exchange))
            return runner.run(cases[name](url, exchange, count))

        slices = {name: partial(one, name) for name in cases}
        rows = interleave(slices, beside=[AIO_PIKA, BY_HAND], rounds=rounds)
    tables = {f"RabbitMQ, {count:,} events of {len(PAYLOAD)} bytes, confirmed": rows}
    for title, table in tables.items():
        show(title, table)
    save("rabbitmq_raw", tables, {"rounds": rounds, "events": count, "batch": BATCH})
    return tables


if __name__ == "__main__":
    run()

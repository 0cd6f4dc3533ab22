"""Outbox rows to NATS JetStream: the relay beside nats-py alone, and beside the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.cases import BARE_NATS, NATS_PIPELINED, outrider_to, outrider_tuned
from bench.databases import outbox_on
from bench.measure import Row, in_turn, rows_of, save, show
from bench.rabbitmq_raw import AGGREGATES, EVENT_TYPE, PAYLOAD
from bench.relay import BATCH, DEFAULT, TUNED, Bench
from outrider import RelayConfig
from outrider.brokers.nats import NatsPublisher
from outrider.testing.services import Services

STREAM = "BENCH"
SUBJECT = "bench"

ONE_BY_ONE = "one by one, no database"
ASYNC = "publish_async, no database"
OURS = outrider_to("NATS")
OURS_TUNED = outrider_tuned("NATS")

Message = tuple[str, str, str, bytes]


class RawClient:
    """nats-py with 1,000 publishes in flight: one inbox for all answers, which are only counted."""

    def __init__(self, client: Client) -> None:
        self.client, self.js = client, client.jetstream(publish_async_max_pending=2 * BATCH)
        self._inbox = client.new_inbox()
        self._missing, self._done = 0, asyncio.Event()

    async def subscribe(self) -> None:
        await self.client.subscribe(f"{self._inbox}.*", cb=self._count)

    async def _count(self, answer: Msg) -> None:
        assert answer.data.startswith(b'{"stream":'), answer.data
        self._missing -= 1
        if not self._missing:
            self._done.set()

    async def publish(self, messages: list[Message]) -> None:
        self._missing = len(messages)
        self._done.clear()
        for number, message in enumerate(messages):
            subject, headers = self._headers(message)
            await self.client.publish(subject, message[3], f"{self._inbox}.{number}", headers)
        await self._done.wait()

    async def publish_async(self, messages: list[Message]) -> None:
        answers = []
        for message in messages:
            subject, headers = self._headers(message)
            answers.append(await self.js.publish_async(subject, message[3], headers=headers))
        for answer in answers:
            await answer

    async def publish_one_by_one(self, messages: list[Message]) -> None:
        for message in messages:
            subject, headers = self._headers(message)
            await self.js.publish(subject, message[3], headers=headers)

    def _headers(self, message: Message) -> tuple[str, dict[str, str]]:
        """The same headers that the relay sends."""
        event_id, aggregate, moment, _ = message
        return f"{SUBJECT}.{EVENT_TYPE}", {
            "Nats-Msg-Id": f"{event_id}:nats",
            "ce-specversion": "1.0",
            "ce-id": event_id,
            "ce-source": "outrider",
            "ce-type": EVENT_TYPE,
            "ce-subject": aggregate,
            "ce-time": moment,
            "content-type": "application/json",
            "ce-aggregatetype": "order",
            "ce-eventversion": "1",
        }


class NatsBench(Bench):
    """One database and one stream for all cases."""

    @asynccontextmanager
    async def raw(self) -> Any:
        client = Client()
        await client.connect(self.url, allow_reconnect=False)
        try:
            raw = RawClient(client)
            await raw.subscribe()
            yield raw
        finally:
            await client.close()

    async def purge(self) -> None:
        async with self.raw() as raw:
            await raw.js.purge_stream(STREAM)

    async def alone(self, way: str, count: int) -> float:
        """The rate of one batch after the other, without a database."""
        made = [(str(uuid4()), f"order-{n % AGGREGATES}", "now", PAYLOAD) for n in range(count)]
        async with self.raw() as raw:
            send = getattr(raw, way)
            started = time.perf_counter()
            for start in range(0, count, BATCH):
                await send(made[start : start + BATCH])
            return count / (time.perf_counter() - started)

    async def ceiling(self) -> float:
        async with self.raw() as raw:

            async def send(rows: list[Any]) -> None:
                await raw.publish([(r[1], r[2], r[3].isoformat(), r[4].encode()) for r in rows])

            return await self.bare(send)

    def publisher(self) -> NatsPublisher:
        return NatsPublisher(self.url, stream=STREAM, subject=SUBJECT)

    async def ours(self, config: RelayConfig) -> float:
        return await self.relay(self.publisher(), config)


async def _run(bench: NatsBench, rounds: int) -> list[Row]:
    async with bench.publisher():
        pass  # opening it creates the stream
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        ONE_BY_ONE: lambda: bench.alone("publish_one_by_one", bench.few),
        ASYNC: lambda: bench.alone("publish_async", bench.count),
        NATS_PIPELINED: lambda: bench.alone("publish", bench.count),
        BARE_NATS: bench.ceiling,
        OURS_TUNED: lambda: bench.ours(TUNED),
        OURS: lambda: bench.ours(DEFAULT),
    }
    async with aclosing(bench):
        rates = await in_turn(cases, rounds=rounds, before=bench.purge)
    return rows_of(rates, [BARE_NATS, NATS_PIPELINED])


def run(
    rounds: int = 5, count: int = 60_000, services: Services | None = None
) -> dict[str, list[Row]]:
    with outbox_on(services, "bench_nats") as (servers, database):
        rows = asyncio.run(_run(NatsBench(database, servers.nats.url, count), rounds))
        version = servers.nats.version
    tables = {"to NATS": rows}
    show(f"to NATS {version}, events of 300 bytes over {AGGREGATES} aggregates", rows)
    save(
        "nats",
        tables,
        {"rounds": rounds, "count": count, "batch": DEFAULT.batch_size, "server": version},
    )
    return tables


if __name__ == "__main__":
    run()

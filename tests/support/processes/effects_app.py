"""A consumer whose handler writes one row per event, in the transaction of the inbox."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from outrider import EventConsumer, EventEnvelope, SqlInbox
from outrider.consumer.scopes import current_scope
from outrider.observability.logging import log_signals
from outrider.ports import EventSource

CONSUME = ("consume", "tests.support.processes.effects_app:consumer")
GROUP = "effects"
EFFECTS = "CREATE TABLE effects (number bigserial PRIMARY KEY, id uuid, aggregate text, n int)"


class WriteEffect:
    name = "write_effect"

    async def handle(self, envelope: EventEnvelope, /) -> None:
        scope = current_scope()
        assert scope is not None
        session = await scope.get(AsyncSession)
        await session.execute(
            text("INSERT INTO effects (id, aggregate, n) VALUES (:id, :aggregate, :n)"),
            {
                "id": envelope.event_id,
                "aggregate": envelope.aggregate_id,
                "n": envelope.payload["n"],
            },
        )


def source_of(url: str, name: str) -> EventSource:
    match url.partition("://")[0]:
        case "amqp":
            from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQSource, Topology

            in_turn = "EFFECTS_SHARED" not in os.environ
            queue = Queue(name, (Binding(name, "#"),), single_active_consumer=in_turn)
            topology = Topology(queues=(queue,))
            return RabbitMQSource(url, queue=name, topology=topology, ordered=in_turn)
        case "kafka":
            from outrider.brokers.kafka import KafkaConfig, KafkaSource

            return KafkaSource(url, topic=name, group=GROUP, config=KafkaConfig(partitions=4))
        case "nats":
            from outrider.brokers.nats import NatsSource

            return NatsSource(url, stream=name, group=GROUP)
        case _:
            from outrider.brokers.redis import RedisConfig, RedisSource

            config = RedisConfig(takeover_after=timedelta(seconds=2))
            return RedisSource(url, name, group=GROUP, config=config)


async def prepare_broker(url: str, name: str) -> None:
    """Create queue, topic or stream, by opening and closing a source."""
    source = source_of(url, name)
    if url.startswith("nats"):
        from outrider.brokers.nats import NatsPublisher

        await (publisher := NatsPublisher(url, stream=name, subject=name)).open()
        await publisher.close()
    await source.open()
    await source.close()


@asynccontextmanager
async def consumer() -> AsyncIterator[EventConsumer]:
    engine = create_async_engine(os.environ["EFFECTS_DATABASE"], pool_size=16)
    source = source_of(os.environ["OUTBOX_TO"], os.environ["OUTBOX_DESTINATION"])
    inbox = SqlInbox(async_sessionmaker(engine))
    handlers = [("thing.changed", WriteEffect())]
    try:
        yield EventConsumer(source, handlers, inbox=inbox, on_signal=log_signals)
    finally:
        await engine.dispose()

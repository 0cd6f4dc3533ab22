"""An outage costs no attempts: while a broker takes nothing, events wait, and then all arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from nats.js.api import DiscardPolicy
from redis.asyncio import Redis

from outrider import DomainEvent, OutboxRelay, RelayConfig
from outrider.brokers.nats import NatsPublisher
from outrider.brokers.rabbitmq import Queue, RabbitMQPublisher, Topology
from outrider.brokers.redis import RedisPublisher
from outrider.ports import EventPublisher
from outrider.signals import EventFailed, PublishDeferred, PublishRetried, SinkUnavailable
from outrider.testing.memory_store import MemoryOutboxStore
from outrider.testing.services import Services
from tests.support.brokers.nats_streams import jetstream
from tests.support.brokers.nats_streams import unique as unique_stream
from tests.support.brokers.rabbitmq_queues import one_queue, unique
from tests.support.doubles import SignalRecorder
from tests.support.until import until

ONE_ATTEMPT = RelayConfig(
    max_retries=1, poll_interval=timedelta(milliseconds=50), lease=timedelta(hours=1)
)


class Flow:
    """A relay whose events fail with the first attempt that is counted."""

    def __init__(self) -> None:
        self._now = datetime.now(UTC)
        self.outbox, self.heard = MemoryOutboxStore(clock=lambda: self._now), SignalRecorder()

    @asynccontextmanager
    async def to(self, publisher: EventPublisher) -> AsyncIterator[None]:
        async with OutboxRelay(self.outbox, publisher, ONE_ATTEMPT, on_signal=self.heard):
            yield

    def record(self, *aggregates: int, event_type: str = "order.placed") -> None:
        self.outbox.record(*(DomainEvent(event_type, "order", n, {}) for n in aggregates))

    async def told(self, *kinds: type) -> str:
        """The reason of the first such signal."""
        await self.heard.until(lambda: bool(self.heard.of(*kinds)))
        reason: str = self.heard.of(*kinds)[0].reason
        return reason

    async def all_published(self) -> None:
        """With every look a backoff is over, so that nobody waits for it here."""

        def done() -> bool:
            self._now += timedelta(seconds=30)
            return {row.status for row in self.outbox.rows} == {"published"}

        await until(done, "all events are published")
        assert {row.retry_count for row in self.outbox.rows} == {0}
        assert not self.heard.of(EventFailed, PublishRetried)


async def acknowledge(message: AbstractIncomingMessage) -> None:
    await message.ack()


async def test_full_queue_of_rabbitmq(services: Services) -> None:
    name, flow = unique(), Flow()
    publisher = RabbitMQPublisher(
        services.rabbitmq.url, name, topology=one_queue(name, max_length=2)
    )
    async with flow.to(publisher):
        flow.record(*range(20))
        reason = await flow.told(PublishDeferred)

        async with await aio_pika.connect(services.rabbitmq.url) as connection:
            queue = await (await connection.channel()).get_queue(name)
            await queue.consume(acknowledge)
            await flow.all_published()

    assert "full" in reason


async def test_queue_of_rabbitmq_that_is_missing_for_a_while(services: Services) -> None:
    # given a topology without a queue, so that only somebody else can declare it
    name, flow = unique(), Flow()
    publisher = RabbitMQPublisher(services.rabbitmq.url, name, topology=Topology())
    async with flow.to(publisher):
        flow.record(1, 2, 1)
        reason = await flow.told(PublishDeferred)

        # when
        async with await aio_pika.connect(services.rabbitmq.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, durable=True)
            await queue.bind(name, "#")
        await flow.all_published()

    # then
    assert f"exchange {name!r} has no queue for 'order.placed': bind a queue to it" in reason
    assert "mandatory=False" in reason


async def test_deleted_queue_of_rabbitmq_while_others_flow(services: Services) -> None:
    name, gone, flow = unique(), unique("gone"), Flow()
    queues = (one_queue(name).queues[0], Queue(gone, one_queue(name).queues[0].bindings))
    publisher = RabbitMQPublisher(services.rabbitmq.url, name, topology=Topology(queues=queues))
    async with flow.to(publisher):
        flow.record(1)
        await flow.all_published()
        async with await aio_pika.connect(services.rabbitmq.url) as connection:
            channel = await connection.channel()
            await channel.queue_delete(name)
            await channel.queue_delete(gone)

        flow.record(1, 2)
        await flow.told(PublishDeferred)
        await flow.all_published()

        async with await aio_pika.connect(services.rabbitmq.url) as connection:
            channel = await connection.channel()
            for queue in (name, gone):
                found = await channel.declare_queue(queue, passive=True)
                assert found.declaration_result.message_count == 2


async def test_full_stream_of_nats(services: Services) -> None:
    name, flow = unique_stream(), Flow()
    async with jetstream(services.nats.url) as js:
        made = await js.add_stream(
            name=name, subjects=[f"{name}.>"], max_msgs=2, discard=DiscardPolicy.NEW
        )
        async with flow.to(NatsPublisher(services.nats.url, name, subject=name)):
            flow.record(*range(20))
            reason = await flow.told(SinkUnavailable)
            await js.update_stream(made.config, max_msgs=100)
            await flow.all_published()

    assert "maximum messages exceeded" in reason


async def test_full_subject_of_nats_while_others_flow(services: Services) -> None:
    name, flow = unique_stream(), Flow()
    async with jetstream(services.nats.url) as js:
        made = await js.add_stream(
            name=name,
            subjects=[f"{name}.>"],
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
        )
        async with flow.to(NatsPublisher(services.nats.url, name, subject=name)):
            flow.record(1, 2)
            reason = await flow.told(PublishDeferred)
            flow.record(3, event_type="order.shipped")
            await until(lambda: flow.outbox.rows[-1].status == "published")
            await js.update_stream(made.config, max_msgs_per_subject=10)
            await flow.all_published()

    assert "maximum messages per subject exceeded" in reason
    assert not flow.heard.of(SinkUnavailable)


@pytest.mark.parametrize(("setting", "value"), [("maxmemory", "1"), ("min-replicas-to-write", "1")])
async def test_redis_that_takes_nothing(services: Services, setting: str, value: str) -> None:
    flow, server = Flow(), services.another("redis")
    try:
        async with Redis.from_url(server.url) as admin, flow.to(RedisPublisher(server.url)):
            await admin.config_set(setting, value)
            flow.record(*range(20))
            await flow.told(SinkUnavailable)
            await admin.config_set(setting, "0")
            await flow.all_published()
    finally:
        server.stop()


async def test_stream_of_redis_whose_name_is_taken_while_others_flow(services: Services) -> None:
    name, flow = unique("stream"), Flow()
    async with Redis.from_url(services.redis.url) as client:
        taken = f"{name}.1"
        await client.set(taken, "no stream")
        stream = f"{name}.{{aggregate_id}}"
        async with flow.to(RedisPublisher(services.redis.url, stream)):
            flow.record(1, 2)
            reason = await flow.told(PublishDeferred)
            await until(lambda: flow.outbox.rows[-1].status == "published")
            await client.delete(taken)
            await flow.all_published()

    assert "WRONGTYPE" in reason
    assert not flow.heard.of(SinkUnavailable)

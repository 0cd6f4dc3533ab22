"""RabbitMQSource while its broker is killed, frozen or out of memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outrider import BrokerUnavailable
from outrider.brokers.rabbitmq import RabbitMQConfig, RabbitMQSource
from outrider.ports import Delivery
from outrider.testing.services import Services
from outrider.testing.services.servers.rabbitmq import RabbitMQ
from tests.support.brokers.events import event
from tests.support.brokers.rabbitmq_admin import set_memory_limit
from tests.support.brokers.rabbitmq_queues import messages_in, one_queue, publishing, unique

QUICK = RabbitMQConfig(
    connect_timeout=timedelta(seconds=2),
    publish_timeout=timedelta(seconds=1),
    heartbeat=timedelta(seconds=1),
)
COUNT = 30

pytestmark = pytest.mark.faults


@pytest.fixture
def broker(services: Services) -> RabbitMQ:
    server = services.victim("rabbitmq")
    assert isinstance(server, RabbitMQ)
    return server


async def filled(broker: RabbitMQ) -> tuple[RabbitMQSource, list[Delivery]]:
    """A source that holds all messages of its queue."""
    name = unique()
    topology = one_queue(name)
    async with publishing(broker.url, name, topology) as publisher:
        await publisher.publish_all([event() for _ in range(COUNT)])
    source = RabbitMQSource(broker.url, queue=name, topology=topology, config=QUICK)
    return source, await received(source)


async def received(source: RabbitMQSource, count: int = COUNT) -> list[Delivery]:
    """So many, however long the broker is away."""
    found: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            try:
                found += await source.receive(count - len(found))
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
    return found


async def until_unavailable(source: RabbitMQSource) -> BrokerUnavailable:
    async with asyncio.timeout(60):
        while True:
            try:
                await source.receive(1)
            except BrokerUnavailable as error:
                return error


async def test_what_was_in_hand_is_lost_with_the_broker_and_comes_again(broker: RabbitMQ) -> None:
    source, held = await filled(broker)

    await asyncio.to_thread(broker.kill)
    error = await until_unavailable(source)
    await source.acknowledge(held[0])
    await source.dead_letter(held[1], "no")
    await asyncio.to_thread(broker.start)
    again = await received(source)
    await source.close()

    assert all(delivery.lost for delivery in held)
    assert broker.password not in str(error)
    assert [each.envelope for each in again] == [each.envelope for each in held]


async def test_frozen_broker_is_noticed_and_nothing_is_lost(broker: RabbitMQ) -> None:
    source, held = await filled(broker)
    await source.dead_letter(held[0], "no")

    broker.pause()
    try:
        with pytest.raises(BrokerUnavailable):
            await source.dead_letter(held[1], "no")
        await until_unavailable(source)
    finally:
        broker.resume()
    again = await received(source, COUNT - 1)
    await source.close()

    assert all(delivery.lost for delivery in held[1:])
    assert [each.envelope for each in again] == [each.envelope for each in held[1:]]


async def test_memory_alarm_holds_up_dead_letters_but_no_acknowledgements(broker: RabbitMQ) -> None:
    source, held = await filled(broker)
    await source.dead_letter(held[0], "no")

    async def watermark(part: float) -> None:
        await asyncio.to_thread(set_memory_limit, broker, part)

    async def unacknowledged() -> int:
        vhost = ("-p", broker.name, "--no-table-headers", "--silent")
        what = ("list_queues", *vhost, "name", "messages_unacknowledged")
        lines = (await asyncio.to_thread(broker.ctl, *what)).splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == source._queue)

    await watermark(0.00001)
    try:
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match="dead letter"):
                await source.dead_letter(held[1], "no")
        for delivery in held[2:]:
            await source.acknowledge(delivery)
        async with asyncio.timeout(60):
            while await unacknowledged() != 1:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.1)
    finally:
        await watermark(0.4)
    await source.dead_letter(held[1], "no")
    await source.close()

    letters = await messages_in(broker.url, f"{source._queue}.dlq")
    # The one that was on its way when the alarm came, and the one that followed it.
    assert [letter.body for letter in letters].count(b"{}") in (2, 3)
    assert await messages_in(broker.url, source._queue) == []


async def test_source_that_opens_in_a_memory_alarm_receives(broker: RabbitMQ) -> None:
    source, held = await filled(broker)
    await source.close()

    await asyncio.to_thread(set_memory_limit, broker, 0.00001)
    try:
        await source.open()
        again = await received(source)
        await source.close()
    finally:
        await asyncio.to_thread(set_memory_limit, broker, 0.4)

    assert [each.envelope for each in again] == [each.envelope for each in held]
    assert not any(each.suspect for each in again)

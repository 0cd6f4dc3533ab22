"""RabbitMQPublisher while its broker is killed, frozen, out of memory or away."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import pytest

from outrider import BrokerUnavailable, EventEnvelope
from outrider.brokers.rabbitmq import RabbitMQConfig
from outrider.outcomes import ACCEPTED, Accepted, Unknown
from outrider.testing.services import Services
from outrider.testing.services.servers.rabbitmq import RabbitMQ
from tests.support.brokers.events import event
from tests.support.brokers.rabbitmq_admin import set_memory_limit
from tests.support.brokers.rabbitmq_queues import (
    assert_accepted_are_a_prefix,
    kinds,
    messages_in,
    noted_on_disk,
    one_queue,
    outcomes_of,
    publishing,
    unique,
)

KILLS = 10 if os.environ.get("OUTRIDER_FULL") else 1
QUICK = RabbitMQConfig(
    connect_timeout=timedelta(seconds=2),
    publish_timeout=timedelta(seconds=1),
    heartbeat=timedelta(seconds=1),
)

pytestmark = pytest.mark.faults


@pytest.fixture
def broker(services: Services) -> RabbitMQ:
    server = services.victim("rabbitmq")
    assert isinstance(server, RabbitMQ)
    return server


async def restarted(broker: RabbitMQ) -> None:
    broker.own()
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


@pytest.mark.fault("B2")
async def test_all_that_was_accepted_survives_a_kill_in_mid_batch(broker: RabbitMQ) -> None:
    names = {kind: unique(kind) for kind in ("classic", "quorum")}
    accepted: dict[str, list[EventEnvelope]] = {kind: [] for kind in names}
    going = asyncio.Event()

    async def keep_publishing(kind: str) -> None:
        """Until a call was cut off by the kill."""
        async with publishing(broker.url, names[kind], one_queue(names[kind], kind=kind)) as sender:
            outcomes = []
            while all(outcome == ACCEPTED for outcome in outcomes):
                batch = [event(f"a{number % 60}") for number in range(200)]
                outcomes = await outcomes_of(sender, batch)
                assert_accepted_are_a_prefix(batch, outcomes)
                assert set(kinds(outcomes)) <= {Accepted, Unknown}
                pairs = zip(batch, outcomes, strict=True)
                accepted[kind] += [e for e, outcome in pairs if outcome == ACCEPTED]
                if all(len(found) > 1000 for found in accepted.values()):
                    going.set()

    for _ in range(KILLS):
        going.clear()
        async with asyncio.TaskGroup() as tasks:
            for kind in names:
                tasks.create_task(keep_publishing(kind))
            await going.wait()
            await noted_on_disk(broker, names["quorum"])
            await restarted(broker)

    for kind, name in names.items():
        stored = {message.message_id for message in await messages_in(broker.url, name)}
        lost = {str(e.event_id) for e in accepted[kind]} - stored
        assert not lost, f"{len(lost)} of {len(accepted[kind])} in the {kind} queue"


@pytest.mark.fault("B11")
async def test_publisher_goes_on_by_itself_after_an_outage(broker: RabbitMQ) -> None:
    name = unique()
    async with publishing(broker.url, name, config=QUICK) as publisher:
        await publisher.publish(event())
        await asyncio.to_thread(broker.kill)
        away = await outcomes_of(publisher, [event(), event("b")])
        with pytest.raises(BrokerUnavailable):
            await publisher.open()
        await asyncio.to_thread(broker.start)
        back = await outcomes_of(publisher, [event(), event("b")])

    assert all(isinstance(o, Unknown) and isinstance(o.error, BrokerUnavailable) for o in away)
    assert back == [ACCEPTED, ACCEPTED]
    assert len(await messages_in(broker.url, name)) == 3


@pytest.mark.fault("B3")
async def test_frozen_broker_ends_at_the_deadline(broker: RabbitMQ) -> None:
    name, clock = unique(), asyncio.get_running_loop().time
    batch = [event("a", data=b"x" * 100_000) for _ in range(3)]
    batch += [event(str(number), data=b"x" * 100_000) for number in range(200)]
    async with publishing(broker.url, name, config=QUICK) as publisher:
        await publisher.open()
        broker.pause()
        try:
            started = clock()
            frozen = await outcomes_of(publisher, batch)
            first_took, started = clock() - started, clock()
            again = await outcomes_of(publisher, [event()])
            second_took = clock() - started
        finally:
            broker.resume()
        thawed = await outcomes_of(publisher, [event()])

    assert set(kinds(frozen)) == {Unknown}
    assert kinds(again) == [Unknown]
    assert max(first_took, second_took) < 3
    assert thawed == [ACCEPTED]


@pytest.mark.fault("B4")
async def test_memory_alarm_blocks_until_the_deadline_and_costs_one_copy(broker: RabbitMQ) -> None:
    name = unique()

    async def watermark(part: float) -> None:
        await asyncio.to_thread(set_memory_limit, broker, part)

    first = event()
    async with publishing(broker.url, name, config=QUICK) as publisher:
        await publisher.open()
        await watermark(0.00001)
        try:
            tries = [await outcomes_of(publisher, [first, event("b")]) for _ in range(4)]
        finally:
            await watermark(0.4)
        after = await outcomes_of(publisher, [first])

    for outcomes in tries:
        for outcome in outcomes:
            assert isinstance(outcome, Unknown)
            assert "blocked by the broker: " in outcome.reason
            assert isinstance(outcome.error, BrokerUnavailable)
    assert after == [ACCEPTED]
    stored = [message.message_id for message in await messages_in(broker.url, name)]
    assert stored.count(str(first.event_id)) == 2


async def test_cancelled_call_does_not_spoil_the_next(broker: RabbitMQ) -> None:
    name = unique()
    async with publishing(broker.url, name, config=QUICK) as publisher:
        await publisher.open()
        broker.pause()
        call = asyncio.create_task(publisher.publish_all([event(str(n)) for n in range(50)]))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        broker.resume()
        outcomes = await outcomes_of(publisher, [event("x"), event("y"), event("x")])

    assert outcomes == [ACCEPTED] * 3

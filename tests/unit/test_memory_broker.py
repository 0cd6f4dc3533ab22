"""MemoryBroker: what its users' tests rely on besides the promises of the suites."""

from __future__ import annotations

import asyncio

from outrider import EventConsumer
from outrider.testing.conformance.events import event, events
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler


async def test_every_group_receives_every_event() -> None:
    broker, batch = MemoryBroker(), events(3)
    await broker.publisher().publish_all(batch)

    received = []
    for source in (broker.source("mail"), broker.source("invoices")):
        for delivery in await source.receive(10):
            await source.acknowledge(delivery)
            received.append(delivery.envelope)

    assert broker.events == batch
    assert received == batch + batch


async def test_what_came_again_after_an_outage_is_no_suspect() -> None:
    broker = MemoryBroker()
    await broker.publisher().publish(event())
    source = broker.source()

    suspects = []
    for _ in range(3):
        suspects += [delivery.suspect for delivery in await source.receive(1)]
        broker.stop()
        broker.start()

    assert suspects == [False] * 3


async def test_consumer_handles_everything_through_an_outage() -> None:
    broker, remember, batch = MemoryBroker(), RecordingHandler(), events(4)

    async with EventConsumer(broker.source(), [("*", remember)]), asyncio.timeout(60):
        await broker.publisher().publish_all(batch[:2])
        await broker.handled()
        broker.stop()
        await asyncio.sleep(0)
        broker.start()
        await broker.publisher().publish_all(batch[2:])
        await broker.handled()

    assert remember.handled == batch


async def test_garbage_is_set_aside_by_the_consumer() -> None:
    broker, batch = MemoryBroker(), events(1)

    async with (
        EventConsumer(broker.source("mail"), [("*", RecordingHandler())]),
        asyncio.timeout(60),
    ):
        broker.put(b"garbage")
        await broker.publisher().publish_all(batch)
        await broker.handled("mail")

    [letter] = broker.dead_letters
    assert (letter.group, letter.message.data) == ("mail", b"garbage")
    assert "specversion" in letter.reason

"""The promises of a source, one test each."""
# ruff: noqa: S101

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from outrider.errors import BrokerUnavailable
from outrider.ports import Delivery
from outrider.testing.conformance.events import (
    CANARY,
    awkward_events,
    envelopes_of,
    event,
    events,
    order_of,
    secrets_in,
    without_time_zone,
)
from outrider.testing.conformance.harness import DeadLetter
from outrider.testing.conformance.receiving import (
    acknowledge,
    receive,
    receive_left,
    receive_some,
    receive_until,
    receiving,
)
from outrider.testing.conformance.timing import MOMENTS, deadline, moment, outage

if TYPE_CHECKING:
    from outrider.testing.conformance.harness import SourceHarness

REASON: Final = "prüfen: ValueError"
GARBAGE: Final = b"\xff\x00 no event: " + CANARY.encode()


@pytest.mark.asyncio
class SourceSuite:
    """Inherit it as `Test…` and give a fixture `source` that yields a SourceHarness.

    If a broker cannot keep a promise, switch the test off by `test_… = None`, and say why.
    """

    async def test_what_was_sent_arrives_equal_and_in_order(self, source: SourceHarness) -> None:
        batch = events(60, "a", "b", "c") + awkward_events()

        async with receiving(source) as consumer:
            await source.send(batch)
            found = await receive_some(consumer, len(batch))

        envelopes = envelopes_of(found)
        assert order_of(envelopes) == order_of(batch)
        assert {each.event_id: each for each in envelopes} == {
            each.event_id: each for each in batch
        }
        assert [each for each in found if each.problem or each.suspect] == []

    async def test_nothing_sent_is_nothing_received(self, source: SourceHarness) -> None:
        async with receiving(source) as consumer, deadline():
            assert list(await consumer.receive(10)) == []

    async def test_no_more_is_received_than_asked_for(self, source: SourceHarness) -> None:
        batch, sizes = events(20), list[int]()

        async with receiving(source) as consumer, deadline():
            await source.send(batch)
            while sum(sizes) < len(batch):
                sizes.append(len(await consumer.receive(3)))

        assert max(sizes) <= 3

    async def test_what_was_acknowledged_does_not_come_again(self, source: SourceHarness) -> None:
        batch = events(10, "a", "b")

        async with receiving(source) as consumer:
            await source.send(batch)
            for delivery in await receive_some(consumer, len(batch)):
                await consumer.acknowledge(delivery)

        assert await receive_left(source, "a", "b") == []

    async def test_what_was_not_acknowledged_comes_again_oldest_first(
        self, source: SourceHarness
    ) -> None:
        batch = events(10)

        async with receiving(source) as consumer:
            await source.send(batch)
            for delivery in (await receive_some(consumer, 8))[:3]:
                await consumer.acknowledge(delivery)

        assert envelopes_of(await receive_left(source, "a")) == batch[3:]

    async def test_what_a_killed_consumer_held_comes_again_oldest_first(
        self, source: SourceHarness
    ) -> None:
        batch = events(10)
        async with receiving(source):
            await source.send(batch)

        await source.crash(8, 3)

        # The acknowledgements of a killed process may be lost; messages may not.
        again = envelopes_of(await receive_left(source, "a"))
        assert again in [batch[acknowledged:] for acknowledged in range(4)]

    async def test_what_killed_consumers_is_a_suspect_with_the_crashes_that_were_counted(
        self, source: SourceHarness
    ) -> None:
        batch, again = events(5), list[Delivery]()
        async with receiving(source) as consumer:
            await source.send(batch)
            await receive_some(consumer, 1)  # closing it tells that nobody died, until the crash

        await source.crash(5, 0)
        await source.crash(1, 0, [1])
        await source.crash(1, 0, [1, 1, -1])

        async with receiving(source) as consumer, deadline():
            while len(again) < len(batch):
                for delivery in await receive(consumer, len(batch)):
                    await consumer.acknowledge(delivery)
                    again.append(delivery)
        assert envelopes_of(again) == batch
        assert [(each.suspect, each.crash_count) for each in again] == [
            (True, 2),
            *[(True, 0)] * 4,
        ]

    async def test_acknowledging_out_of_order_loses_nothing(self, source: SourceHarness) -> None:
        batch = events(5)

        async with receiving(source) as consumer:
            await source.send(batch)
            await consumer.acknowledge((await receive_some(consumer, 4))[2])

        again = envelopes_of(await receive_left(source, "a"))
        assert again in (batch, batch[:2] + batch[3:])

    async def test_garbage_is_a_delivery_with_a_problem(self, source: SourceHarness) -> None:
        batch = events(2)

        async with receiving(source) as consumer:
            await source.send(batch[:1])
            await source.send_garbage(GARBAGE)
            await source.send(batch[1:])
            found = await receive_some(consumer, 3)
            [garbage] = [delivery for delivery in found if delivery.envelope is None]
            await consumer.dead_letter(garbage, REASON)
            for delivery in found:
                if delivery is not garbage:
                    await consumer.acknowledge(delivery)

        assert envelopes_of(found) == batch
        assert garbage.problem
        assert CANARY not in garbage.problem
        assert await source.dead_letters() == [DeadLetter(GARBAGE, REASON)]
        assert await receive_left(source, "a") == []

    async def test_an_event_that_is_not_valid_is_garbage_too(self, source: SourceHarness) -> None:
        invalid = without_time_zone(event())

        async with receiving(source) as consumer:
            await source.send([invalid])
            [garbage] = await receive_some(consumer, 1)
            await consumer.dead_letter(garbage, REASON)

        assert garbage.envelope is None
        assert garbage.problem
        assert await source.dead_letters() == [DeadLetter(invalid.data, REASON)]

    async def test_a_dead_letter_is_stored_with_its_reason_and_does_not_come_again(
        self, source: SourceHarness
    ) -> None:
        batch = events(3)

        async with receiving(source) as consumer:
            await source.send(batch)
            found = await receive_some(consumer, 3)
            await consumer.dead_letter(found[1], REASON)
            await consumer.acknowledge(found[0])

        assert await source.dead_letters() == [DeadLetter(batch[1].data, REASON)]
        assert envelopes_of(await receive_left(source, "a")) == batch[2:]

    async def test_an_open_source_goes_on_after_an_outage(self, source: SourceHarness) -> None:
        batch = events(8, "a", "b")

        async with receiving(source) as consumer:
            await source.send(batch[:6])
            held = await receive_some(consumer, 6)
            async with source.unreachable():
                await receive(consumer, 10)
            await source.send(batch[6:])
            again = await receive_until(consumer, *batch[6:])
            for delivery in held + again:
                await acknowledge(consumer, delivery)

        # Unacknowledged messages come again, the oldest first, or are still with the source.
        sent = order_of(batch)
        for aggregate_id, ids in order_of(envelopes_of(again)).items():
            assert ids in (sent[aggregate_id], sent[aggregate_id][-1:])
        assert await receive_left(source, "a", "b") == []

    async def test_acknowledging_after_an_outage_is_harmless(self, source: SourceHarness) -> None:
        batch = events(5)

        async with receiving(source) as consumer:
            await source.send(batch[:4])
            held = await receive_some(consumer, 4)
            await consumer.acknowledge(held[0])
            async with outage(source):
                pass
            await source.send(batch[4:])
            await receive_until(consumer, batch[4])
            await acknowledge(consumer, held[1])

        # A killed server may lose acknowledgements: the first two may come again, the others must.
        again = envelopes_of(await receive_left(source, "a"))
        assert again == [each for each in batch if each in again]
        assert again[-3:] == batch[2:]

    async def test_a_second_source_stands_by_and_takes_over(self, source: SourceHarness) -> None:
        batch, meanwhile = events(12), list[Delivery]()

        async with receiving(source) as first:
            await source.send(batch[:4])
            await first.acknowledge((await receive_some(first, 4))[0])
            async with receiving(source) as second:
                await source.send(batch[4:])
                async with asyncio.TaskGroup() as tasks:
                    active = tasks.create_task(receive_until(first, batch[-1]))
                    while not active.done():
                        meanwhile += await receive(second, 10)
                assert meanwhile == []
                await first.close()
                after = await receive_until(second, batch[-1])

        assert envelopes_of(after) == batch[1:]

    async def test_cancelling_receive_loses_nothing(self, source: SourceHarness) -> None:
        batch, found = events(3 * len(MOMENTS), "a", "b"), events(0)

        async with receiving(source) as consumer:
            for number in MOMENTS:
                await source.send(batch[3 * number : 3 * number + 3])
                call = asyncio.create_task(consumer.receive(2))
                await moment(number)
                call.cancel()
                await asyncio.wait({call})
                if not call.cancelled():
                    found += envelopes_of(call.result())
            async with deadline():
                while set(found) != set(batch):
                    found += envelopes_of(await receive(consumer, 10))

        assert order_of(found) == order_of(batch)

    async def test_closing_twice_is_safe_and_opening_again_works(
        self, source: SourceHarness
    ) -> None:
        batch, found = events(2), events(0)
        consumer = source.source()

        await consumer.close()
        for each in batch:
            await consumer.open()
            await source.send([each])
            [delivery] = await receive_some(consumer, 1)
            found += envelopes_of([delivery])
            await consumer.acknowledge(delivery)
            await consumer.close()
            await consumer.close()

        assert found == batch

    async def test_nothing_printed_holds_a_secret(self, source: SourceHarness) -> None:
        async with receiving(source) as consumer:
            shown = f"{consumer} {consumer!r}"
            async with source.unreachable(), deadline():
                try:
                    await consumer.receive(1)
                except BrokerUnavailable as error:
                    shown += repr(error)

        assert "object at 0x" not in str(consumer), "it says where it receives from"
        assert secrets_in(shown, source.secrets) == []

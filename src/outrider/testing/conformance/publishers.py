"""The promises of a publisher, one test each."""
# ruff: noqa: S101

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from outrider.errors import BrokerUnavailable, PublishFailed
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.events.envelope import EventMetadata
from outrider.lifecycle import close_publisher, open_publisher
from outrider.outcomes import Accepted, Deferred, Refused, Unknown
from outrider.testing.conformance.events import (
    CANARY,
    awkward_events,
    event,
    events,
    order_of,
    secrets_in,
    stored_order,
)
from outrider.testing.conformance.sending import accepted_of, kinds, outcomes_of, publishing, settle
from outrider.testing.conformance.timing import (
    MOMENTS,
    deadline,
    moment,
    outage,
    refusal_deadline,
)

if TYPE_CHECKING:
    from outrider.testing.conformance.harness import SinkHarness


@pytest.mark.asyncio
class PublisherSuite:
    """Inherit it as `Test…` and give a fixture `sink` that yields a SinkHarness.

    If a sink cannot keep a promise, switch the test off by `test_… = None`, and say why.
    """

    async def test_what_was_accepted_is_stored(self, sink: SinkHarness) -> None:
        batch, last = events(60, "a", "b", "c"), event("d")

        async with publishing(sink) as publisher:
            await publisher.publish_all([])
            await publisher.publish_all(batch)
            await publisher.publish(last)
            stored = await sink.stored()  # before closing, which might flush a buffer

        assert stored_order(stored) == order_of([*batch, last])

    async def test_what_was_accepted_survives_a_killed_server(self, sink: SinkHarness) -> None:
        batch = events(200, "a", "b", "c")

        async with publishing(sink) as publisher:
            await publisher.publish_all(batch)
            async with outage(sink):
                pass
            stored = await sink.stored()

        assert stored_order(stored) == order_of(batch)

    async def test_a_server_killed_in_mid_batch_breaks_no_order(self, sink: SinkHarness) -> None:
        sent = events(0)
        flows, over = asyncio.Event(), asyncio.Event()

        async def flow() -> None:
            while not over.is_set():
                batch = events(40, "a", "b", "c")
                await settle(publisher, batch)
                sent.extend(batch)
                flows.set()

        async with publishing(sink) as publisher, asyncio.TaskGroup() as tasks:
            tasks.create_task(flow())
            await flows.wait()
            async with outage(sink):
                await moment(MOMENTS[-1])
            over.set()

        assert stored_order(await sink.stored()) == order_of(sent)

    async def test_an_outage_is_neither_accepted_nor_refused(self, sink: SinkHarness) -> None:
        async with publishing(sink) as publisher, sink.unreachable():
            first = await outcomes_of(publisher, events(20, "a", "b"))
            second = await outcomes_of(publisher, events(20, "a", "b"))

        assert set(kinds(first + second)) <= {Deferred, Unknown}

    async def test_the_same_publisher_works_again_after_an_outage(self, sink: SinkHarness) -> None:
        before, after = events(20, "a", "b"), events(20, "a", "b")

        async with publishing(sink) as publisher:
            await publisher.publish_all(before)
            async with outage(sink):
                await outcomes_of(publisher, after)
            outcomes = await settle(publisher, after)

        assert set(kinds(outcomes)) == {Accepted}
        assert stored_order(await sink.stored()) == order_of(before + after)

    async def test_opening_in_an_outage_is_no_mistake(self, sink: SinkHarness) -> None:
        batch = events(3)
        publisher = sink.publisher()

        async with sink.unreachable(), deadline():
            with suppress(BrokerUnavailable):
                await open_publisher(publisher)
        async with deadline():
            await open_publisher(publisher)
        outcomes = await settle(publisher, batch)
        await close_publisher(publisher)

        assert set(kinds(outcomes)) == {Accepted}
        assert stored_order(await sink.stored()) == order_of(batch)

    async def test_accepted_events_are_a_prefix_when_some_are_refused(
        self, sink: SinkHarness
    ) -> None:
        batch = events(18, "a", "b", "c")
        for index in (6, 10):
            batch[index] = sink.refused_event(batch[index].aggregate_id)

        async with publishing(sink) as publisher:
            outcomes = await settle(publisher, batch)

        assert kinds(outcomes[0::3]) == [Accepted] * 2 + [Refused] + [Unknown] * 3
        assert kinds(outcomes[1::3]) == [Accepted] * 3 + [Refused] + [Unknown] * 2
        assert kinds(outcomes[2::3]) == [Accepted] * 6
        assert stored_order(await sink.stored()) == order_of(accepted_of(batch, outcomes))

    async def test_a_refusal_ends_the_call_at_once(self, sink: SinkHarness) -> None:
        batch = [*events(1, "a"), sink.refused_event("a"), *events(3, "a"), *events(2, "b")]

        async with publishing(sink) as publisher:
            await settle(publisher, events(1, "first"))  # a server may still be starting
            async with refusal_deadline():
                outcomes = await outcomes_of(publisher, batch)

        assert isinstance(outcomes[1], Refused)
        assert kinds(outcomes[2:5]) == [Unknown] * 3

    async def test_a_refused_event_harms_nobody_else(self, sink: SinkHarness) -> None:
        batch = events(20, "a", "b")

        async with publishing(sink) as publisher:
            with pytest.raises(PublishFailed) as caught:
                await publisher.publish(sink.refused_event("a"))
            outcomes = await settle(publisher, batch)

        [refused] = caught.value.outcomes
        assert isinstance(refused, Refused)
        assert refused.reason
        assert set(kinds(outcomes)) == {Accepted}
        assert stored_order(await sink.stored()) == order_of(batch)

    async def test_payloads_arrive_byte_for_byte(self, sink: SinkHarness) -> None:
        batch = awkward_events()

        async with publishing(sink) as publisher:
            await publisher.publish_all(batch)

        stored = {message.attributes["id"]: message for message in await sink.stored()}
        assert {str(each.event_id): each.data for each in batch} == {
            event_id: message.data for event_id, message in stored.items()
        }

    async def test_attributes_arrive_exactly(self, sink: SinkHarness) -> None:
        batch = awkward_events()

        async with publishing(sink) as publisher:
            await publisher.publish_all(batch)

        stored = {message.attributes["id"]: message for message in await sink.stored()}
        for sent in batch:
            found = stored[str(sent.event_id)]
            assert found.attributes["source"]
            assert found.attributes == to_attributes(sent, found.attributes["source"])
            assert from_attributes(found.attributes, found.data) == sent

    async def test_the_official_sdk_reads_what_arrives(self, sink: SinkHarness) -> None:
        batch = awkward_events()

        async with publishing(sink) as publisher:
            await publisher.publish_all(batch)

        official = {message.official.get_id(): message.official for message in await sink.stored()}
        for sent in batch:
            found = official[str(sent.event_id)]
            expected = to_attributes(sent, found.get_source())
            assert found.get_attributes() == {**expected, "time": sent.occurred_at}
            assert found.get_data() == sent.payload

    async def test_many_events_of_many_aggregates_arrive_in_order(self, sink: SinkHarness) -> None:
        batch = events(2000, *(f"aggregate-{number}" for number in range(50)))

        async with publishing(sink) as publisher:
            for start in range(0, len(batch), 500):
                await settle(publisher, batch[start : start + 500])

        assert stored_order(await sink.stored()) == order_of(batch)

    async def test_calls_side_by_side_do_not_mix_up(self, sink: SinkHarness) -> None:
        calls = [events(60, f"{name}-1", f"{name}-2") for name in "abcd"]
        calls[1][30] = sink.refused_event("b-1")

        async with publishing(sink) as publisher:
            settled = await asyncio.gather(*(settle(publisher, batch) for batch in calls))

        in_vain = [n for n, outcomes in enumerate(settled) if {*kinds(outcomes)} != {Accepted}]
        assert in_vain == [1]
        assert kinds(settled[1][0::2]) == [Accepted] * 15 + [Refused] + [Unknown] * 14
        assert kinds(settled[1][1::2]) == [Accepted] * 30
        assert stored_order(await sink.stored()) == order_of(
            accepted_of(chain(*calls), chain(*settled))
        )

    async def test_a_cancelled_call_leaves_a_usable_publisher(self, sink: SinkHarness) -> None:
        sent = events(0)

        async with publishing(sink) as publisher:
            for number in MOMENTS:
                batch = events(30, f"{number}-a", f"{number}-b")
                beside = events(30, f"{number}-beside")
                call = asyncio.create_task(publisher.publish_all(batch))
                neighbour = asyncio.create_task(settle(publisher, beside))
                await moment(number)
                call.cancel()
                await asyncio.wait({call})
                assert call.cancelled() or call.exception() is None, "cancellation was swallowed"
                await settle(publisher, batch)
                await neighbour
                sent += batch + beside

        assert stored_order(await sink.stored()) == order_of(sent)

    async def test_closing_twice_is_safe_and_opening_again_works(self, sink: SinkHarness) -> None:
        batch = events(2)
        publisher = sink.publisher()

        await close_publisher(publisher)
        for each in batch:
            await open_publisher(publisher)
            await publisher.publish(each)
            await close_publisher(publisher)
            await close_publisher(publisher)

        assert stored_order(await sink.stored()) == order_of(batch)

    async def test_nothing_printed_holds_a_secret(self, sink: SinkHarness) -> None:
        secret = event("a", {"text": CANARY}, EventMetadata(user_id=CANARY))

        async with publishing(sink) as publisher, sink.unreachable():
            [outcome] = await outcomes_of(publisher, [secret])

        shown = f"{publisher} {publisher!r} {outcome!r}"
        assert "object at 0x" not in str(publisher), "it says where it sends to"
        assert secrets_in(shown, sink.secrets) == []

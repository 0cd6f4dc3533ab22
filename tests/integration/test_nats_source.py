"""NatsSource on a real server: who receives, from where on, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo, RetentionPolicy

from outrider import BrokerUnavailable, ConfigurationError, EventEnvelope
from outrider.brokers.nats import NatsConfig, NatsPublisher, NatsSource
from outrider.consumer.consumer import EventConsumer
from outrider.ports import Delivery
from outrider.testing.conformance.events import events, order_of
from outrider.testing.services import Services
from tests.support.brokers.events import event
from tests.support.brokers.nats_streams import client, jetstream, messages_in, start_guarded, unique
from tests.support.processes.deadly_consumer import consume_until_it_lives

TIMEOUT_S = 60
SOON = NatsConfig(ack_wait=timedelta(milliseconds=500))


@pytest.fixture
def url(services: Services) -> str:
    return services.nats.url


class Group:
    """A stream of its own, and sources of one group that receive from it."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url, self.name, self.settings = url, unique(), settings

    async def send(self, *envelopes: EventEnvelope) -> None:
        async with NatsPublisher(self.url, stream=self.name, subject=self.name) as publisher:
            await publisher.publish_all(envelopes)

    def source(self, **settings: Any) -> NatsSource:
        settings = {"stream": self.name, "group": "billing", **self.settings, **settings}
        return NatsSource(self.url, **settings)

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        async with jetstream(self.url) as js:
            yield js

    async def consumers(self) -> list[ConsumerInfo]:
        async with jetstream(self.url) as js:
            return await js.consumers_info(self.name)


async def received(source: NatsSource, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            found += await source.receive(count - len(found))
    return found


def ids(found: Sequence[Delivery | EventEnvelope]) -> list[str]:
    envelopes = [each.envelope if isinstance(each, Delivery) else each for each in found]
    return [str(each.event_id) for each in envelopes if each is not None]


async def until_lost(source: NatsSource, delivery: Delivery) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not delivery.lost:
            assert await source.receive(1) == []


async def test_taking_over_makes_a_new_consumer_from_the_oldest_left_and_deletes_the_old_one(
    url: str,
) -> None:
    group, batch = Group(url), [event() for _ in range(6)]
    await group.send(*batch)

    async with group.source() as first:
        held = await received(first, 5)
        for delivery in (*held[:2], held[3]):
            await first.acknowledge(delivery)
        [before] = await group.consumers()
    async with group.source() as second:
        again = await received(second, 4)
        [after] = await group.consumers()

    assert (before.name[:10], after.name[:10]) == ("billing-1-", "billing-2-")
    assert after.config.opt_start_seq == 3
    assert ids(again) == ids(batch[2:])


async def test_crash_in_the_middle_of_taking_over_loses_nothing(url: str) -> None:
    """The new consumer is there, the old one too, and has even gone on a little."""
    group, batch = Group(url), [event() for _ in range(6)]
    await group.send(*batch)

    async with group.source() as first, group.jetstream() as js:
        held = await received(first, 3)
        await first.acknowledge(held[0])
        await js.add_consumer(
            group.name,
            durable_name="billing-2-00000000",
            ack_policy="explicit",
            deliver_policy="by_start_sequence",
            opt_start_seq=2,
        )
        await first.acknowledge(held[1])
    async with group.source() as second:
        again = await received(second, 4)

    assert ids(again) == ids(batch[2:])
    assert [each.name[:10] for each in await group.consumers()] == ["billing-3-"]


async def test_nothing_acknowledged_yet_begins_at_the_same_place_again_and_again(url: str) -> None:
    group, batch = Group(url), [event() for _ in range(4)]
    await group.send(*batch)
    async with group.source() as first:
        await first.acknowledge((await received(first, 1))[0])

    for _ in range(3):
        async with group.source() as source:
            assert ids(await received(source, 3)) == ids(batch[1:])


async def test_what_a_lost_connection_held_is_lost_and_comes_again_in_order(url: str) -> None:
    group, batch = Group(url), [event() for _ in range(6)]
    await group.send(*batch[:4])

    async with group.source() as source:
        held = await received(source, 4)
        await source.acknowledge(held[0])
        source._connection.abort()  # type: ignore[union-attr]
        await group.send(*batch[4:])
        again = await received(source, 5)

        assert all(delivery.lost for delivery in held[1:])
        await source.acknowledge(held[1])
        await source.dead_letter(held[2], "in vain")
        [consumer] = await group.consumers()

    assert ids(again) == ids(batch[1:])
    assert consumer.num_ack_pending == 5


async def test_acknowledging_does_not_outlast_the_connection(services: Services) -> None:
    server = services.another("nats")
    group = Group(server.url, config=NatsConfig(request_timeout=timedelta(hours=1)))
    await group.send(event())

    async with group.source() as source:
        [held] = await received(source, 1)
        server.pause()
        try:
            call = asyncio.create_task(source.acknowledge(held))
            await asyncio.sleep(0)
            source._connection.abort()  # type: ignore[union-attr]
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.wait({call})
        finally:
            server.stop()

    assert held.lost
    assert isinstance(call.exception(), BrokerUnavailable)


async def test_source_that_was_abandoned_is_replaced(url: str) -> None:
    group, batch = Group(url), [event() for _ in range(4)]
    await group.send(*batch)
    first, second = group.source(), group.source()
    await first.open()
    await first.acknowledge((await received(first, 3))[0])

    first._connection.abort()  # type: ignore[union-attr]
    again = await received(second, 3)
    await second.close()
    await first.close()

    assert ids(again) == ids(batch[1:])


async def test_of_many_that_start_together_one_is_left_and_order_is_kept(url: str) -> None:
    group, batch, log = Group(url), [event() for _ in range(200)], list[Delivery]()
    await group.send(*batch)

    async def receive(source: NatsSource) -> None:
        while not log or ids(log[-1:]) != ids(batch[-1:]):
            for delivery in await source.receive(10):
                log.append(delivery)
                await source.acknowledge(delivery)

    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(group.source()) for _ in range(6)]
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*map(receive, sources))

    assert len(await group.consumers()) == 1
    assert list(dict.fromkeys(ids(log))) == ids(batch)
    assert len(log) < 2 * len(batch)


async def test_who_was_too_slow_stands_by(url: str) -> None:
    """Between the look at who receives and taking over, somebody else did."""
    group = Group(url)
    await group.send(event())

    async with group.source() as first, group.source() as second:
        await received(first, 1)
        [before] = await group.consumers()
        late = await second._consumers.replace(await second._connected(), None, died=False)
        [after] = await group.consumers()

    assert late is None
    assert after.name == before.name


async def test_source_that_hangs_is_replaced_after_a_while(url: str) -> None:
    """It listens, and answers nothing."""
    group = Group(url, config=NatsConfig(takeover_after=timedelta(seconds=2)))
    batch = [event(), event()]
    await group.send()
    async with group.source() as source:
        await source.receive(1)
    await group.send(*batch)

    async with client(url) as hanging:
        await hanging.subscribe(f"_INBOX.outrider.{group.name}.billing")
        await hanging.flush()
        async with group.source() as source:
            looks = [await source.receive(10) for _ in range(2)]
            found = await received(source, 2)

    assert looks == [[], []]
    assert ids(found) == ids(batch)


async def test_source_does_not_wait_for_its_own_lost_connection(url: str) -> None:
    """Which the server may take for alive for some time, though it answers nothing."""
    group = Group(url, config=NatsConfig(takeover_after=timedelta(hours=1)))
    await group.send(event())

    async with client(url) as half_open, group.source() as source:
        await received(source, 1)
        await half_open.subscribe(f"_INBOX.outrider.{group.name}.billing")
        await half_open.flush()
        source._connection.abort()  # type: ignore[union-attr]
        again = await received(source, 1)

    assert len(again) == 1


async def test_consumer_that_a_successor_deleted_is_given_up(url: str) -> None:
    group, batch = Group(url), [event() for _ in range(3)]
    await group.send(*batch)

    async with group.source() as source, group.jetstream() as js:
        held = await received(source, 3)
        [consumer] = await group.consumers()
        await js.delete_consumer(group.name, consumer.name)
        await until_lost(source, held[0])

    assert all(delivery.lost for delivery in held)


async def test_acknowledging_finds_out_that_a_successor_took_over(url: str) -> None:
    group = Group(url)
    await group.send(event(), event())

    async with group.source() as source, group.jetstream() as js:
        held = await received(source, 2)
        [consumer] = await group.consumers()
        await js.delete_consumer(group.name, consumer.name)
        await source.acknowledge(held[0])

        assert [delivery.lost for delivery in held] == [True, True]


async def test_living_source_keeps_its_messages(url: str) -> None:
    """While another consumer that shows no sign of life gets its message again and again."""
    group = Group(url, config=NatsConfig(ack_wait=timedelta(seconds=1)))
    await group.send(event(), event())

    async with group.source() as source, group.jetstream() as js:
        held = await received(source, 2)
        await js.add_consumer(group.name, durable_name="idle", ack_policy="explicit", ack_wait=1)
        idle = await js.pull_subscribe_bind("idle", stream=group.name)
        for _ in range(4):
            await idle.fetch(1, timeout=TIMEOUT_S)
            assert await source.receive(1) == []
        ours = next(each for each in await group.consumers() if each.name != "idle")
        for delivery in held:
            await source.acknowledge(delivery)

    assert ours.num_redelivered == 0
    assert not [delivery for delivery in held if delivery.lost]


@pytest.mark.fault("E2")
@pytest.mark.parametrize("ordered", [True, False])
async def test_event_that_kills_consumers_becomes_the_only_dead_letter(
    url: str, *, ordered: bool
) -> None:
    group, batch = Group(url, ordered=ordered, config=SOON), events(30, "a", "b", "c")
    await group.send(*batch)

    async def at_once() -> None:
        """The server notices the death of a process at once."""

    deaths, handled = await consume_until_it_lives(group.source, batch, batch[7], at_once)
    [letter] = await messages_in(url, f"{group.name}_DLQ")
    others = [*batch[:7], *batch[8:]]

    assert deaths == 4, "the first death finds the suspects, three more the culprit"
    assert letter.data == batch[7].data
    assert unquote(letter.headers["dead-letter-reason"]) == "3 processes died while handling it"
    assert sorted(ids(handled)) == sorted(ids(others))
    if ordered:
        assert order_of(handled) == order_of(others)


async def test_events_of_a_source_that_was_closed_are_no_suspects(url: str) -> None:
    group, found = Group(url), list[Delivery]()
    await group.send(*(event() for _ in range(3)))

    for _ in range(3):
        async with group.source() as source:
            found += await received(source, 3)

    assert [each.suspect for each in found] == [False] * 9


async def test_events_that_come_again_after_a_lost_connection_are_no_suspects(url: str) -> None:
    group = Group(url)
    await group.send(*(event() for _ in range(3)))

    async with group.source() as source:
        await received(source, 3)
        assert source._connection is not None
        source._connection.abort()
        again = await received(source, 3)

    assert [each.suspect for each in again] == [False] * 3


async def test_crash_is_taken_back_even_if_another_source_took_over_meanwhile(url: str) -> None:
    group = Group(url)
    await group.send(event())

    async with group.source() as first, group.source() as second:
        [held] = await received(first, 1)
        await first.adjust_crash_count(held)
        assert first._active is not None
        first._active.end()
        await first._liveness.stop_answering()
        [again] = await received(second, 1)
        await first.adjust_crash_count(held, -1)
        await second.adjust_crash_count(again)

    assert (again.suspect, again.crash_count) == (True, 1)


async def test_sources_that_share_get_each_message_once(url: str) -> None:
    group, batch = Group(url, ordered=False), [event() for _ in range(40)]

    await group.send(*batch)
    async with group.source() as first, group.source() as second:
        found = await received(first, 20) + await received(second, 20)
        for delivery in found:
            await (first if delivery in found[:20] else second).acknowledge(delivery)

    assert sorted(ids(found)) == sorted(ids(batch))
    [consumer] = await group.consumers()
    assert (consumer.name, consumer.num_ack_pending) == ("billing", 0)


async def test_source_that_shares_gives_back_at_once_what_it_held(url: str) -> None:
    group = Group(url, ordered=False, config=NatsConfig(ack_wait=timedelta(hours=1)))
    batch = [event() for _ in range(5)]
    await group.send(*batch)

    async with group.source() as first, group.source() as second:
        [held] = await first.receive(1)
        await received(first, 2)
        await first.close()
        again = await received(second, 5)

    assert held.lost
    assert sorted(ids(again)) == sorted(ids(batch))
    assert sorted(delivery.suspect for delivery in again) == [False, False, True, True, True]


async def test_group_goes_on_where_it_stood_when_order_is_switched_off_and_on(url: str) -> None:
    group, batch, found = Group(url), [event() for _ in range(3)], list[Delivery]()
    await group.send(*batch)

    for ordered in (True, False, True):
        async with group.source(ordered=ordered) as source:
            found += await received(source, 1)
            await source.acknowledge(found[-1])

    assert ids(found) == ids(batch)
    assert len(await group.consumers()) == 1


async def test_only_the_subjects_asked_for_are_received(url: str) -> None:
    group = Group(url)
    batch = [event("a", "order.placed"), event("a", "user.made"), event("a", "order.paid")]
    await group.send(*batch)

    async with group.source(subjects=[f"{group.name}.order.*"]) as source:
        found = await received(source, 2)

    assert ids(found) == ids([batch[0], batch[2]])


async def test_several_subjects_are_received_or_explained(services: Services) -> None:
    group = Group(services.nats.url)
    batch = [event("a", "order.placed"), event("a", "user.made"), event("a", "item.sold")]
    await group.send(*batch)
    subjects = [f"{group.name}.order.>", f"{group.name}.item.>"]

    async with group.source(subjects=subjects) as source:
        if services.nats.version.startswith("2.9."):
            with pytest.raises(ConfigurationError, match="2.10"):
                await received(source, 1)
            return
        found = await received(source, 2)

    assert ids(found) == ids([batch[0], batch[2]])


async def test_dead_letter_keeps_headers_and_says_why_and_where_from(url: str) -> None:
    group, sent = Group(url), event("ä", data=b'{"n":1}')
    await group.send(sent)

    async with group.source() as source:
        [delivery] = await received(source, 1)
        await source.dead_letter(delivery, "prüfen:\nValueError")
        [consumer] = await group.consumers()
    [letter] = await messages_in(url, f"{group.name}_DLQ")

    assert letter.subject == f"{group.name}_DLQ.billing"
    assert letter.data == sent.data
    assert letter.attributes["id"] == str(sent.event_id)
    own = {name[12:]: unquote(v) for name, v in letter.headers.items() if name.startswith("dead")}
    assert own == {
        "reason": "prüfen:\nValueError",
        "origin": f"{group.name}/1",
        "address": f"{group.name}.order.placed",
        "group": "billing",
    }
    assert consumer.num_ack_pending == 0


async def test_dead_letter_replaces_the_headers_of_an_earlier_one(url: str) -> None:
    group = Group(url)
    await group.send()
    earlier = {"Dead-Letter-Reason": "an earlier one", "dead-letter-group": "audit", "own": "kept"}
    async with group.jetstream() as js:
        await js.publish(f"{group.name}.x", b"{}", headers=earlier)

    async with group.source() as source:
        await source.dead_letter((await received(source, 1))[0], "newest")
    [letter] = await messages_in(url, f"{group.name}_DLQ")

    assert letter.headers == {
        "own": "kept",
        "dead-letter-reason": "newest",
        "dead-letter-origin": f"{group.name}/1",
        "dead-letter-address": f"{group.name}.x",
        "dead-letter-group": "billing",
        "Nats-Msg-Id": f"{group.name}:1:billing",
    }


async def test_dead_letters_of_two_groups_share_a_stream(url: str) -> None:
    group = Group(url)
    await group.send(event())
    mine = unique("D")

    for settings in ({"group": "a"}, {"group": "b", "dead_letters": mine}, {"group": "c"}):
        async with group.source(**settings) as source:
            [delivery] = await received(source, 1)
            await source.dead_letter(delivery, "x")

    subjects = [each.subject for each in await messages_in(url, f"{group.name}_DLQ")]
    assert subjects == [f"{group.name}_DLQ.a", mine, f"{group.name}_DLQ.c"]


async def test_largest_message_becomes_a_dead_letter_too(url: str) -> None:
    group, body = Group(url), b"x" * 1_048_576
    await group.send()
    async with group.jetstream() as js:
        await js.publish(f"{group.name}.raw", body)

    async with group.source() as source:
        [delivery] = await received(source, 1)
        await source.dead_letter(delivery, "too large to say why")

    assert [each.data for each in await messages_in(url, f"{group.name}_DLQ")] == [body]


async def test_source_needs_few_permissions(services: Services) -> None:
    server = start_guarded(services)
    group, reader = Group(server.url_of("app")), server.url_of("reader")
    batch = [event(), event(), event()]
    await group.send(*batch)

    async with NatsSource(reader, stream=group.name, group="billing") as first:
        held = await received(first, 3)
        await first.acknowledge(held[0])
        await first.dead_letter(held[1], "x")
    async with NatsSource(reader, stream=group.name, group="billing") as second:
        again = await received(second, 1)

    assert ids(again) == ids(batch[2:])
    server.stop()


async def test_missing_stream_is_waited_for(url: str) -> None:
    group = Group(url)
    source = group.source()

    with pytest.raises(BrokerUnavailable, match="no such stream yet"):
        await source.open()
    await group.send(event())
    found = await received(source, 1)
    await source.close()

    assert len(found) == 1


async def test_stream_deleted_while_running_is_waited_for(url: str) -> None:
    group, later = Group(url), [event(), event()]
    await group.send(event())

    async with group.source() as source, group.jetstream() as js:
        [held] = await received(source, 1)
        await js.delete_stream(group.name)
        await until_lost(source, held)
        with pytest.raises(BrokerUnavailable, match="stream not found"):
            await source.receive(1)
        await group.send(*later)
        found = await received(source, 2)

    assert ids(found) == ids(later)


async def test_stream_that_would_take_its_own_dead_letters_is_a_mistake(url: str) -> None:
    group = Group(url)
    await group.send()

    with pytest.raises(ConfigurationError, match="dead letters would come back"):
        await group.source(dead_letters=f"{group.name}.dead").open()


async def test_work_queue_cannot_be_ordered(url: str) -> None:
    group = Group(url)
    async with group.jetstream() as js:
        await js.add_stream(
            name=group.name, subjects=[f"{group.name}.>"], retention=RetentionPolicy.WORK_QUEUE
        )
    await group.send(event())

    with pytest.raises(ConfigurationError, match="set ordered to false"):
        await group.source().open()
    async with group.source(ordered=False) as source:
        [delivery] = await received(source, 1)
        await source.acknowledge(delivery)

    assert await messages_in(url, group.name) == []


async def test_stream_that_keeps_by_interest_loses_nothing_in_a_take_over(url: str) -> None:
    group, batch = Group(url), [event() for _ in range(4)]
    async with group.jetstream() as js:
        await js.add_stream(
            name=group.name, subjects=[f"{group.name}.>"], retention=RetentionPolicy.INTEREST
        )

    async with group.source() as first:
        await first.receive(1)
        await group.send(*batch)
        await first.acknowledge((await received(first, 3))[0])
    async with group.source() as second:
        again = await received(second, 3)

    assert ids(again) == ids(batch[1:])


async def test_consumer_handles_all_in_order_through_the_source(url: str) -> None:
    group, handled, done = Group(url), list[EventEnvelope](), asyncio.Event()
    batch = [event(f"a{number % 7}") for number in range(500)]
    await group.send(*batch)

    class Handler:
        name = "handler"

        async def handle(self, envelope: EventEnvelope, /) -> None:
            handled.append(envelope)
            if len(handled) == len(batch):
                done.set()

    async with asyncio.timeout(TIMEOUT_S), EventConsumer(group.source(), [("*", Handler())]):
        await done.wait()

    for number in range(7):
        ours = [each for each in handled if each.aggregate_id == f"a{number}"]
        assert ids(ours) == ids([each for each in batch if each.aggregate_id == f"a{number}"])
    [consumer] = await group.consumers()
    assert (consumer.num_ack_pending, consumer.num_pending) == (0, 0)

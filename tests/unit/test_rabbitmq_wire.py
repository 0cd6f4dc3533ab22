"""What a broker may do on the wire, whatever a real one does: confirms, returns, silence, noise."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from outrider import BrokerUnavailable, EventEnvelope
from outrider.brokers import PublishFailed
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.outcomes import ACCEPTED, Accepted, Deferred, Outcome, Refused, Unknown
from tests.support.brokers.amqp_peer import (
    PASSWORD,
    Conversation,
    Message,
    acknowledge,
    envelope,
    ignore,
    listening,
    publishing,
)


async def outcomes_of(publisher: RabbitMQPublisher, batch: list[EventEnvelope]) -> list[Outcome]:
    try:
        await publisher.publish_all(batch)
    except PublishFailed as failed:
        return list(failed.outcomes)  # type: ignore[arg-type]
    return [ACCEPTED] * len(batch)


def kinds(outcomes: list[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


class Moody:
    """Confirms in any order and grouping, and gives each event the fate that was drawn for it."""

    def __init__(self, fates: dict[str, str], dice: random.Random) -> None:
        self.fates = fates
        self.dice = dice
        self.said: dict[str, str] = {}
        self.arrived: list[str] = []

    async def __call__(self, talk: Conversation) -> None:
        waiting: dict[int, Message] = {}
        arriving = talk.messages()
        coming = asyncio.ensure_future(anext(arriving))
        while True:
            # Only once nothing more comes by itself are there many to choose from.
            done, _ = await asyncio.wait([coming], timeout=0.002 if waiting else None)
            if done:
                try:
                    message = coming.result()
                except (StopAsyncIteration, asyncio.IncompleteReadError, ConnectionError):
                    return
                waiting[message.tag] = message
                self.arrived.append(message.id)
                coming = asyncio.ensure_future(anext(arriving))
            elif not self._answer(talk, waiting):
                talk.writer.close()
                return

    def _answer(self, talk: Conversation, waiting: dict[int, Message]) -> bool:
        tag = self.dice.choice(list(waiting))
        fate = self.fates[waiting[tag].id]
        upto = [t for t in sorted(waiting) if t <= tag]
        alike = all(self.fates[waiting[t].id] == fate for t in upto)
        multiple = alike and fate != "close" and self.dice.random() < 0.7
        for each in upto if multiple else [tag]:
            if fate == "return":
                talk.give_back(waiting[each])
        confirm = talk.nack if fate == "nack" else talk.ack
        if fate == "close":
            talk.close_channel(404, "NOT_FOUND - no exchange")
            return False
        confirm(tag, multiple=multiple)
        for each in upto if multiple else [tag]:
            self.said[waiting.pop(each).id] = fate
        return True


FATES = st.sampled_from(["ack"] * 8 + ["nack", "return", "close"])
BATCHES = st.lists(st.tuples(st.sampled_from("abcdef"), FATES), min_size=1, max_size=25)


@pytest.mark.fault("B17")
@given(batch=BATCHES, seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_accepted_events_are_a_prefix_whatever_the_order_of_confirms(
    batch: list[tuple[str, str]], seed: int
) -> None:
    events = [envelope(aggregate) for aggregate, _ in batch]
    fates = {str(e.event_id): fate for e, (_, fate) in zip(events, batch, strict=True)}
    moody = Moody(fates, random.Random(seed))

    async def story() -> list[Outcome]:
        async with listening(moody) as peer, publishing(peer.url) as publisher:
            return await outcomes_of(publisher, events)

    outcomes = asyncio.run(story())

    per_aggregate = defaultdict(list)
    for event, outcome in zip(events, outcomes, strict=True):
        said = moody.said.get(str(event.event_id))
        per_aggregate[event.aggregate_id].append(outcome)
        # Every word of the broker counts, and nothing else does.
        assert isinstance(outcome, Accepted) == (said == "ack")
        assert isinstance(outcome, Deferred) == (said in ("nack", "return"))
    for found in per_aggregate.values():
        accepted = [isinstance(outcome, Accepted) for outcome in found]
        assert accepted == sorted(accepted, reverse=True)
    assert_sent_in_order(events, moody)


def assert_sent_in_order(events: list[EventEnvelope], moody: Moody) -> None:
    """The broker saw each event at most once, and never before its predecessor was confirmed."""
    assert len(set(moody.arrived)) == len(moody.arrived)
    chains = defaultdict(list)
    for event in events:
        chains[event.aggregate_id].append(str(event.event_id))
    for chain in chains.values():
        assert [e for e in moody.arrived if e in chain] == chain[
            : len(set(moody.arrived) & {*chain})
        ]
        for before, after in pairwise(chain):
            if after in moody.arrived:
                assert moody.said[before] == "ack"


async def test_event_follows_as_soon_as_its_predecessor_is_confirmed() -> None:
    slow, first, second = envelope("slow"), envelope("quick"), envelope("quick")
    seen: list[str] = []

    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            seen.append(message.id)
            if message.id != str(slow.event_id):
                talk.ack(message.tag)
            if message.id == str(second.event_id):
                talk.ack(1)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        await publisher.publish_all([slow, first, second])

    assert seen == [str(event.event_id) for event in (slow, first, second)]


@pytest.mark.fault("B17")
async def test_confirm_of_all_so_far_settles_all() -> None:
    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            if message.tag == 3:
                talk.ack(0, multiple=True)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        outcomes = await outcomes_of(publisher, [envelope(name) for name in "abc"])

    assert outcomes == [ACCEPTED] * 3


async def test_confirms_are_understood_when_they_come_byte_by_byte() -> None:
    async def script(talk: Conversation) -> None:
        write = talk.writer.write

        def trickle(data: bytes) -> None:
            for at in range(len(data)):
                write(data[at : at + 1])

        async for message in talk.messages():
            talk.writer.write = trickle  # type: ignore[method-assign]
            if message.tag == 2:
                talk.give_back(message)
            talk.ack(message.tag)
            await asyncio.sleep(0.01)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        outcomes = await outcomes_of(publisher, [envelope(n, b"[" + b"1" * 99) for n in "abc"])

    assert kinds(outcomes) == [Accepted, Deferred, Accepted]


async def test_returned_event_is_deferred_with_reason_and_cure() -> None:
    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            talk.give_back(message)
            talk.ack(message.tag)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        [deferred] = await outcomes_of(publisher, [envelope()])

    assert isinstance(deferred, Deferred)
    assert "NO_ROUTE" in deferred.reason
    assert "has no queue for 'order.placed': bind a queue to it" in deferred.reason


async def test_same_event_returned_twice_at_once_is_accepted_by_neither_call() -> None:
    event = envelope()

    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            talk.give_back(message)
            if message.tag == 2:
                talk.ack(2, multiple=True)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        await publisher.open()
        twice = await asyncio.gather(*(outcomes_of(publisher, [event]) for _ in range(2)))

    assert [kinds(outcomes) for outcomes in twice] == [[Deferred], [Deferred]]


async def test_confirm_for_what_was_never_sent_ends_the_connection() -> None:
    async def script(talk: Conversation) -> None:
        async for _ in talk.messages():
            talk.ack(2**62, multiple=True)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        [outcome] = await outcomes_of(publisher, [envelope()])

    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, BrokerUnavailable)


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="http"),
        pytest.param(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x50\xce", id="short ack"),
        pytest.param(b"\x01\x00\x01\xff\xff\xff\xff\x00", id="huge frame"),
        pytest.param(b"\x01\x00\x01\x00\x00\x00\x04\xff\xff\xff\xff\xce", id="unknown method"),
        pytest.param(b"\x08\x00\x00\x00\x00\x00\x00\x00", id="no end of frame"),
    ],
)
async def test_noise_ends_the_connection_and_the_next_call_works(noise: bytes) -> None:
    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            if len(peer.conversations) == 1:
                talk.writer.write(noise)
            else:
                talk.ack(message.tag)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        first = await outcomes_of(publisher, [envelope()])
        second = await outcomes_of(publisher, [envelope()])

    assert isinstance(first[0], Unknown)
    assert "no AMQP 0-9-1" in first[0].reason
    assert second == [ACCEPTED]


@pytest.mark.fault("B9")
async def test_black_hole_ends_at_the_deadline_and_the_connection_is_not_used_again() -> None:
    async def script(talk: Conversation) -> None:
        await (ignore if len(peer.conversations) == 1 else acknowledge)(talk)

    async with listening(script) as peer, publishing(peer.url, seconds=0.2) as publisher:
        started = asyncio.get_running_loop().time()
        first = await outcomes_of(publisher, [envelope("a"), envelope("a"), envelope("b")])
        took = asyncio.get_running_loop().time() - started
        second = await outcomes_of(publisher, [envelope()])

    assert kinds(first) == [Unknown] * 3
    assert all(isinstance(o, Unknown) and isinstance(o.error, BrokerUnavailable) for o in first)
    assert 0.2 <= took < 1.5
    assert second == [ACCEPTED]
    assert len(peer.conversations) == 2


@pytest.mark.fault("B10")
async def test_cancelled_call_leaves_nothing_behind_for_the_next() -> None:
    held = asyncio.Event()

    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            if len(peer.conversations) == 1:
                held.set()
            else:
                talk.nack(message.tag)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        call = asyncio.create_task(publisher.publish(envelope()))
        await held.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        peer.conversations[0].ack(1)
        outcomes = await outcomes_of(publisher, [envelope()])

    assert kinds(outcomes) == [Deferred]
    assert len(peer.conversations) == 2


async def test_calls_share_one_connection_and_get_their_own_outcomes() -> None:
    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            (talk.nack if message.publish.routing_key == "bad" else talk.ack)(message.tag)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        calls = [
            outcomes_of(publisher, [envelope(f"{n}-{m}", event_type=kind) for m in range(20)])
            for n, kind in enumerate(["good", "bad"] * 5)
        ]
        found = await asyncio.gather(*calls)

    assert [set(kinds(outcomes)) for outcomes in found] == [{Accepted}, {Deferred}] * 5
    assert len(peer.conversations) == 1


@pytest.mark.fault("B4")
async def test_nothing_is_sent_while_blocked_and_the_reason_is_told() -> None:
    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            if message.tag == 1:
                talk.say(commands.Connection.Blocked("low on memory"), 0)
            else:
                talk.ack(message.tag, multiple=True)

    beat = timedelta(seconds=5)
    async with (
        listening(script) as peer,
        publishing(peer.url, seconds=0.2, heartbeat=beat) as publisher,
    ):
        first = await outcomes_of(publisher, [envelope()])
        second = await outcomes_of(publisher, [envelope()])
        sent_while_blocked = len(peer.conversations[0].received)
        peer.conversations[0].say(commands.Connection.Unblocked(), 0)
        third = await outcomes_of(publisher, [envelope()])

    for outcomes in (first, second):
        assert isinstance(outcomes[0], Unknown)
        assert "blocked by the broker: low on memory" in outcomes[0].reason
    assert sent_while_blocked == 1
    assert third == [ACCEPTED]
    assert len(peer.conversations) == 1


async def test_silent_broker_is_dropped_after_two_heartbeats() -> None:
    async def script(talk: Conversation) -> None:
        await (ignore if len(peer.conversations) == 1 else acknowledge)(talk)

    async with (
        listening(script, heartbeat=1) as peer,
        publishing(peer.url, heartbeat=timedelta(seconds=60)) as publisher,
    ):
        outcomes = await outcomes_of(publisher, [envelope()])
        again = await outcomes_of(publisher, [envelope()])

    assert isinstance(outcomes[0], Unknown)
    assert "no sign of life" in outcomes[0].reason
    assert peer.conversations[0].heartbeats >= 3
    assert again == [ACCEPTED]


async def test_large_event_is_split_into_frames_and_an_empty_one_has_none() -> None:
    large = bytes(range(256)) * 50

    async with listening(acknowledge, frame_max=4096) as peer, publishing(peer.url) as publisher:
        await publisher.publish_all([envelope("a", large), envelope("b", b""), envelope("c")])
        received = peer.conversations[0].received

    assert [(m.body, m.frames) for m in received] == [(large, 4), (b"", 0), (b"{}", 1)]


async def test_event_too_large_closes_the_channel_once_and_is_refused_alone() -> None:
    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            if len(message.body) > 100:
                talk.close_channel(
                    406,
                    "PRECONDITION_FAILED - message size 200 is larger than configured max size 100",
                )
            elif message.publish.routing_key != "waits":
                talk.ack(message.tag)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        events = [envelope("a", event_type="waits"), envelope("b", b"x" * 200), envelope("b")]
        first = await outcomes_of(publisher, events)
        second = await outcomes_of(publisher, [*events[1:], envelope("c")])

    assert kinds(first) == [Unknown, Refused, Unknown]
    assert kinds(second) == [Refused, Unknown, Accepted]


async def test_event_type_without_permission_is_refused_and_its_neighbours_are_unknown() -> None:
    text = "ACCESS_REFUSED - access to topic 'secret' in exchange 'shop' in vhost '/' refused"

    async def script(talk: Conversation) -> None:
        async for message in talk.messages():
            if message.publish.routing_key == "secret":
                talk.close_channel(403, text)

    async with listening(script) as peer, publishing(peer.url) as publisher:
        outcomes = await outcomes_of(publisher, [envelope("a"), envelope("b", event_type="secret")])

    assert kinds(outcomes) == [Unknown, Refused]


@pytest.mark.fault("B9")
@pytest.mark.parametrize("offset", range(0, 108, 3))
async def test_handshake_cut_anywhere_is_broker_unavailable(offset: int) -> None:
    async with listening(acknowledge, cut_after=offset) as peer, publishing(peer.url) as publisher:
        with pytest.raises(BrokerUnavailable):
            await publisher.open()


@pytest.mark.fault("B9", "B11")
async def test_broker_that_never_greets_is_unavailable_at_the_deadline() -> None:
    async def wait(talk: Conversation) -> None:
        await talk.reader.read()

    async with (
        listening(wait, greets=False) as peer,
        publishing(peer.url, seconds=0.2) as publisher,
    ):
        started = asyncio.get_running_loop().time()
        with pytest.raises(BrokerUnavailable, match="no answer in time"):
            await publisher.open()
        took = asyncio.get_running_loop().time() - started
        [outcome] = await outcomes_of(publisher, [envelope()])

    assert 0.2 <= took < 1.5
    assert isinstance(outcome, Unknown)
    assert PASSWORD not in repr(outcome)


async def test_closed_publisher_sends_nothing_until_it_is_opened_again() -> None:
    async with listening(acknowledge) as peer, publishing(peer.url) as publisher:
        await publisher.publish(envelope())
        await publisher.close()
        await publisher.close()
        closed = await outcomes_of(publisher, [envelope()])
        await publisher.open()
        opened = await outcomes_of(publisher, [envelope()])

    assert kinds(closed) == [Unknown]
    assert opened == [ACCEPTED]
    assert [len(talk.received) for talk in peer.conversations] == [1, 1]


async def test_closing_settles_what_is_in_flight_as_unknown() -> None:
    async with listening(ignore) as peer, publishing(peer.url) as publisher:
        await publisher.open()
        call = asyncio.create_task(outcomes_of(publisher, [envelope()]))
        await peer.conversations[0].something.wait()
        await publisher.close()
        [outcome] = await call

    assert isinstance(outcome, Unknown)
    assert "closed by us" in outcome.reason


async def test_empty_batch_needs_no_broker() -> None:
    async with listening(acknowledge) as peer, publishing(peer.url) as publisher:
        await publisher.publish_all([])

    assert peer.conversations == []

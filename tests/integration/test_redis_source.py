"""RedisSource on a real server: what comes again, who takes over, what survives tampering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from outrider import BrokerUnavailable, ConfigurationError, EventConsumer, EventEnvelope
from outrider.brokers.redis import RedisConfig, RedisPublisher, RedisSource
from outrider.ports import Delivery
from outrider.testing.conformance.events import envelopes_of, events, order_of
from outrider.testing.conformance.receiving import receive_some, receive_until
from outrider.testing.services import Services
from tests.support.brokers.redis_users import with_documented_rights, with_user
from tests.support.until import until

GROUP = "billing"
CONFIG = RedisConfig(takeover_after=timedelta(seconds=1))


class Stream:
    """One stream, our sources of it, and a plain client beside them."""

    def __init__(self, url: str, client: Redis) -> None:
        self.url, self.client = url, client
        self.name = f"events.{uuid4().hex}"
        self._sources: list[RedisSource] = []

    async def send(self, *envelopes: EventEnvelope) -> None:
        async with RedisPublisher(self.url, stream=self.name) as publisher:
            await publisher.publish_all(envelopes)

    async def source(self, *, ordered: bool = True, url: str | None = None) -> RedisSource:
        source = RedisSource(
            url or self.url, self.name, group=GROUP, ordered=ordered, config=CONFIG
        )
        self._sources.append(source)
        await source.open()
        return source

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    async def pending(self) -> int:
        return int((await self.client.xpending(self.name, GROUP))["pending"])

    async def abandon(self, source: RedisSource) -> None:
        """As if its process hung: nobody renews its lease from now on."""
        assert source._renewing is not None
        source._renewing.cancel()
        await until(self._lease_is_free)

    async def _lease_is_free(self) -> bool:
        return not await self.client.exists(f"{self.name}.{GROUP}.lease")


@pytest.fixture
async def stream(services: Services) -> AsyncIterator[Stream]:
    url = services.redis.url
    async with Redis.from_url(url) as client:
        stream = Stream(url, client)
        yield stream
        await stream.close()


def ids_of(deliveries: Sequence[Delivery]) -> list[Any]:
    return [envelope.event_id for envelope in envelopes_of(deliveries)]


async def test_process_that_hangs_is_replaced_and_takes_nothing_from_its_successor(
    stream: Stream,
) -> None:
    batch = events(9)
    await stream.send(*batch[:4])
    first = await stream.source()
    held = await receive_some(first, 4)
    await first.acknowledge(held[0])

    await stream.abandon(first)
    second = await stream.source()
    taken_over = await receive_some(second, 2)
    await stream.send(*batch[4:])
    woken = await first.receive(10)
    rest = await receive_some(second, 6)

    assert woken == []
    assert all(delivery.lost for delivery in held[1:])
    assert envelopes_of(taken_over) + envelopes_of(rest) == batch[1:]


async def test_process_that_hangs_writes_no_dead_letter(stream: Stream) -> None:
    await stream.send(*events(2))
    first = await stream.source()
    held = await receive_some(first, 2)

    await stream.abandon(first)
    second = await stream.source()
    await receive_some(second, 2)
    await first.dead_letter(held[0], "too late")

    assert held[0].lost
    assert await stream.client.exists(f"{stream.name}.dlq") == 0
    assert await stream.pending() == 2


async def test_renewed_lease_is_kept_for_as_long_as_the_process_lives(stream: Stream) -> None:
    first, second = await stream.source(), await stream.source()
    await stream.send(*events(1))
    held = await receive_some(first, 1)

    for _ in range(5):  # each waits for half a second, and the lease is one
        assert await second.receive(1) == []

    assert not held[0].lost


async def test_renewing_the_lease_disturbs_no_reading(stream: Stream) -> None:
    batch, over = events(200), asyncio.Event()
    await stream.send(*batch)
    source = await stream.source()

    async def renew() -> None:
        while not over.is_set():
            await source._reader.renew([])

    found = await receive_some(source, 1)
    renewing = [asyncio.create_task(renew()) for _ in range(2)]
    while len(found) < 200:
        found += await source.receive(2)
    over.set()
    await asyncio.gather(*renewing)

    assert envelopes_of(found) == batch
    assert not any(delivery.lost for delivery in found)


async def test_lease_that_was_deleted_is_noticed_and_taken_again(stream: Stream) -> None:
    batch = events(4)
    await stream.send(*batch[:2])
    source = await stream.source()
    held = await receive_some(source, 2)

    await stream.client.delete(f"{stream.name}.{GROUP}.lease")

    async def is_lost() -> bool:
        return held[0].lost

    await until(is_lost)
    await stream.send(*batch[2:])
    assert envelopes_of(await receive_some(source, 4)) == batch


async def test_many_pending_entries_come_again_in_order_before_new_ones(stream: Stream) -> None:
    batch = events(300, "a", "b", "c")
    await stream.send(*batch[:250])
    first = await stream.source()
    held = await receive_some(first, 250)
    for delivery in held[::7]:
        await first.acknowledge(delivery)
    await first.close()

    await stream.send(*batch[250:])
    second = await stream.source()
    found: list[Delivery] = []
    while len(found) < 300 - len(held[::7]):
        found += await second.receive(7)

    left = [each.envelope for number, each in enumerate(held) if number % 7]
    assert envelopes_of(found) == left + batch[250:]
    assert not any(each.suspect for each in found), "the first process closed its source"


async def test_entries_pending_under_other_names_come_first(stream: Stream) -> None:
    batch = events(20)
    await stream.send(*batch[:15])
    await stream.client.xgroup_create(stream.name, GROUP, "0")
    for name, count in (("x", 4), ("y", 6), ("z", 5)):
        await stream.client.xreadgroup(GROUP, name, {stream.name: ">"}, count=count)

    await stream.send(*batch[15:])
    source = await stream.source()

    assert envelopes_of(await receive_some(source, 20)) == batch


async def test_entries_that_were_deleted_while_pending_are_gone(stream: Stream) -> None:
    batch = events(6)
    await stream.send(*batch)
    first = await stream.source()
    held = await receive_some(first, 6)
    await first.close()

    await stream.client.xdel(stream.name, held[0].message[0])
    second = await stream.source()
    found = await receive_some(second, 1)
    await stream.client.xdel(stream.name, *(each.message[0] for each in held[2:4]))
    found += await receive_some(second, 2)
    for delivery in found:
        await second.acknowledge(delivery)

    assert envelopes_of(found) == [batch[1], *batch[4:]]
    assert [loss.count for loss in second.take_losses()] == [3]
    assert await stream.pending() == 0


async def test_all_pending_entries_deleted_is_no_end(stream: Stream) -> None:
    batch = events(30)
    await stream.send(*batch[:20])
    first = await stream.source()
    await receive_some(first, 20)
    await first.close()

    await stream.client.xtrim(stream.name, maxlen=0, approximate=False)
    await stream.send(*batch[20:])
    second = await stream.source()

    assert envelopes_of(await receive_until(second, batch[-1])) == batch[20:]


@pytest.mark.parametrize("ordered", [True, False])
async def test_group_that_was_destroyed_is_made_again_with_all_the_stream_holds(
    stream: Stream, *, ordered: bool
) -> None:
    batch = events(6)
    await stream.send(*batch[:3])
    source = await stream.source(ordered=ordered)
    held = await receive_some(source, 3)

    await stream.client.xgroup_destroy(stream.name, GROUP)
    await stream.send(*batch[3:])
    found = await receive_until(source, batch[-1])
    for delivery in [*held, *found]:
        await source.acknowledge(delivery)

    assert order_of(envelopes_of([*held, *found])) == order_of(batch)
    assert await stream.pending() == 0


@pytest.mark.parametrize("ordered", [True, False])
async def test_stream_that_was_deleted_is_made_again(stream: Stream, *, ordered: bool) -> None:
    batch = events(6)
    await stream.send(*batch[:3])
    source = await stream.source(ordered=ordered)
    held = await receive_some(source, 3)

    await stream.client.delete(stream.name)
    await source.receive(1)
    await stream.send(*batch[3:])
    found = await receive_some(source, 3)
    for delivery in held:
        await source.acknowledge(delivery)

    assert envelopes_of(found) == batch[3:]
    assert not any(delivery.lost for delivery in held)


async def test_dead_letter_has_the_fields_and_the_reason(stream: Stream) -> None:
    fields = {b"ce-id": b"\xff", b"data": b"\x00\x01", b"dead-letter-reason": b"an earlier one"}
    entry = await stream.client.xadd(stream.name, fields)  # type: ignore[arg-type]
    source = await stream.source()

    [delivery] = await receive_some(source, 1)
    await source.dead_letter(delivery, "no event")

    [(_, found)] = await stream.client.xrange(f"{stream.name}.dlq")
    assert found == {
        b"ce-id": b"\xff",
        b"data": b"\x00\x01",
        b"dead-letter-reason": b"no event",
        b"dead-letter-origin": stream.name.encode() + b"/" + entry,
        b"dead-letter-address": stream.name.encode(),
        b"dead-letter-group": GROUP.encode(),
    }
    assert await stream.pending() == 0


async def test_dead_letters_to_a_key_of_another_type_lose_nothing(stream: Stream) -> None:
    await stream.send(*events(1))
    source = await stream.source()
    [delivery] = await receive_some(source, 1)

    await stream.client.set(f"{stream.name}.dlq", "a string")
    with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
        await source.dead_letter(delivery, "no event")
    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        await stream.source()

    assert await stream.pending() == 1


async def test_stream_of_another_type_is_a_configuration_error(stream: Stream) -> None:
    await stream.client.set(stream.name, "a string")

    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        await stream.source()


async def test_shared_group_hands_every_event_to_one_process(stream: Stream) -> None:
    batch = events(60, "a", "b")
    sources = [await stream.source(ordered=False) for _ in range(3)]

    await stream.send(*batch[:30])
    found = [await receive_some(source, 10) for source in sources]
    await stream.send(*batch[30:])
    found += [await receive_some(source, 10) for source in sources]

    assert sorted(id for each in found for id in ids_of(each)) == sorted(
        envelope.event_id for envelope in batch
    )


async def test_shared_group_claims_what_a_dead_process_left_and_not_what_a_slow_one_holds(
    stream: Stream,
) -> None:
    batch = events(6)
    dead, slow, alive = [await stream.source(ordered=False) for _ in range(3)]
    await stream.send(*batch)
    left, held = await receive_some(dead, 3), await receive_some(slow, 3)

    assert dead._renewing is not None
    dead._renewing.cancel()
    claimed = await receive_some(alive, 3)
    for _ in range(3):
        claimed += await alive.receive(10)

    assert ids_of(claimed) == ids_of(left)
    assert all(delivery.suspect for delivery in claimed)
    assert not any(delivery.lost for delivery in held)


async def test_documented_permissions_are_enough_to_receive(stream: Stream) -> None:
    theirs = await with_documented_rights("billing", stream.url, stream.client, stream.name)
    await stream.send(*events(3))

    for ordered in (True, False):
        source = await stream.source(ordered=ordered, url=theirs)
        found = await receive_some(source, 1)
        await source._reader.renew([found[0].message[0]])
        await source.dead_letter(found[0], "no reason")
        await source.close()

    assert await stream.client.xlen(f"{stream.name}.dlq") == 2


async def test_group_without_permission_is_a_configuration_error(stream: Stream) -> None:
    user = uuid4().hex
    rules = ("on", ">secret", "~*", "+@all", "-xinfo")
    await stream.client.execute_command("ACL", "SETUSER", user, *rules)
    source = await stream.source(url=with_user(stream.url, user, "secret"))

    with pytest.raises(ConfigurationError, match="no permissions"):
        await source.receive(1)


async def test_many_acknowledgements_at_once_need_few_calls(stream: Stream) -> None:
    await stream.send(*events(300))
    source = await stream.source()
    held = await receive_some(source, 300)

    async def calls() -> int:
        counted = await stream.client.info("commandstats")
        return int(counted.get("cmdstat_xack", {"calls": 0})["calls"])

    before = await calls()
    await asyncio.gather(*map(source.acknowledge, held))

    assert await stream.pending() == 0
    assert await calls() - before < 10


async def test_acknowledgements_in_an_outage_all_fail_and_count_when_repeated(
    services: Services,
) -> None:
    server = services.another("redis")
    async with Redis.from_url(server.url) as client:
        stream = Stream(server.url, client)
        await stream.send(*events(20))
        source = await stream.source()
        held = await receive_some(source, 20)

        await asyncio.to_thread(server.kill)
        failed = await asyncio.gather(*map(source.acknowledge, held), return_exceptions=True)
        await asyncio.to_thread(server.start)
        for delivery in held:
            delivery.lost = False  # should the lease have ended meanwhile
            await source.acknowledge(delivery)

        assert {type(error) for error in failed} == {BrokerUnavailable}
        assert await stream.pending() == 0
        await stream.close()
    server.stop()


@asynccontextmanager
async def consuming(source: RedisSource, handled: list[EventEnvelope]) -> AsyncIterator[None]:
    class Note:
        name = "note"

        async def handle(self, envelope: EventEnvelope, /) -> None:
            handled.append(envelope)

    async with EventConsumer(source, [("order.*", Note())]):
        yield


async def test_consumers_that_come_and_go_and_a_killed_server_break_no_order(
    services: Services,
) -> None:
    server = services.another("redis")
    batch = events(600, *(f"a{number}" for number in range(7)))
    handled: list[EventEnvelope] = []
    async with Redis.from_url(server.url) as client:
        stream = Stream(server.url, client)
        make = lambda: RedisSource(server.url, stream.name, group=GROUP, config=CONFIG)  # noqa: E731

        async def enough() -> bool:
            return len(set(handled)) >= wanted

        for round_, wanted in enumerate((200, 400, 600)):
            async with consuming(make(), handled), consuming(make(), handled):
                await stream.send(*batch[wanted - 200 : wanted])
                if round_ == 1:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await until(enough)
    server.stop()

    assert order_of(handled) == order_of(batch)

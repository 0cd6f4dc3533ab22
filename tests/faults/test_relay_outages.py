"""Relays while the broker or the database is away, and while one event is refused for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.brokers.rabbitmq import RabbitMQConfig
from outrider.testing.services import Server, Services
from tests.faults.flow import BATCH, FULL, LOOPS, SEED, Flow, flowing, fresh_database, until

OUTAGE = 120 if FULL else 5
RESTARTS = 10 if FULL else 2
RELAYS = 3
PUBLISH_TIMEOUT = RabbitMQConfig().publish_timeout.total_seconds()
SETTINGS = {"OUTBOX_LEASE": "2", "OUTBOX_POLL_INTERVAL_MS": "500"}
REFUSED = {
    "OUTBOX_RETRY": "exponential",
    "OUTBOX_MAX_RETRIES": "3",
    "OUTBOX_POLL_INTERVAL_MS": "200",
}

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def broker(services: Services) -> Iterator[Server]:
    server = services.another("rabbitmq")
    yield server
    server.stop()


@pytest.fixture
def database(services: Services) -> Iterator[Server]:
    server = services.another("postgres")
    yield server
    server.stop()


async def writers_go_on(flow: Flow, events: int = 50) -> None:
    goal = len(flow.writers.committed) + events
    await until(lambda: len(flow.writers.committed) >= goal, "writers go on")


async def test_outage_of_the_broker_costs_no_attempts_and_ends_by_itself(
    services: Services, broker: Server, tmp_path: Path
) -> None:
    async with flowing(fresh_database(services), broker.url, tmp_path, **SETTINGS) as flow:
        # given
        relays = await flow.start_relays(RELAYS)
        flow.writers.start(writers=8, pause=0.05)
        await writers_go_on(flow)

        # when
        broker.own()
        await asyncio.to_thread(broker.stop)
        relays[0].restart()  # who takes over must not blame what it cannot publish
        before = [relay.pid for relay in relays]
        await asyncio.sleep(OUTAGE)
        await asyncio.to_thread(broker.start)
        await writers_go_on(flow)
        await flow.writers.stopped()
        await flow.reader.start()
        await flow.arrived()

        # then
        assert [relay.pid for relay in relays if relay.is_alive] == before
        verdict = await flow.verdict()
        in_hand = (RELAYS + flow.lost_leases) * LOOPS * BATCH
        assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"


async def test_restarts_of_the_database_cost_no_attempts_and_no_event(
    services: Services, database: Server, tmp_path: Path
) -> None:
    async with flowing(database.url, services.rabbitmq.url, tmp_path, **SETTINGS) as flow:
        # given
        await flow.reader.start()
        relays = await flow.start_relays(RELAYS)
        before = [relay.pid for relay in relays]
        flow.writers.start(writers=8, pause=0.005)

        # when
        for number in range(RESTARTS):
            await writers_go_on(flow, 300)
            database.own()
            await asyncio.to_thread(database.kill if number % 2 else database.stop)
            await asyncio.to_thread(database.start)
        await writers_go_on(flow)
        await flow.writers.stopped()
        await flow.arrived()

        # then
        print(f"{flow.writers.failures} failed, {len(flow.writers.in_doubt)} in doubt")
        assert flow.writers.failures
        assert [relay.pid for relay in relays if relay.is_alive] == before
        verdict = await flow.verdict()
        in_hand = (RESTARTS * RELAYS + flow.lost_leases) * LOOPS * BATCH
        assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"


def unread_by(server: Server) -> int:
    """Bytes that wait in the sockets of its port, as the kernel tells."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    to_port = [line for line in lines if line[1].endswith(f":{server.port:04X}")]
    return sum(int(line[4].partition(":")[2], 16) for line in to_port if line[3] == "01")


async def test_terminated_relay_does_not_wait_longer_than_its_grace_time_for_a_hung_broker(
    services: Services, broker: Server, tmp_path: Path
) -> None:
    settings = {"OUTBOX_GRACE": "1", "OUTBOX_LEASE": "60"}
    async with flowing(fresh_database(services), broker.url, tmp_path, **settings) as flow:
        # given
        (relay,) = await flow.start_relays(1)
        broker.own()
        await asyncio.to_thread(broker.pause)
        try:
            await flow.writers.record_many(1)
            await until(lambda: unread_by(broker) > 0, "a batch is on its way")

            # when
            relay.terminate()

            # then
            await until(lambda: not relay.is_alive, "the relay ends", PUBLISH_TIMEOUT / 2)
            assert relay.exit_code == 0
            assert {owner.relay for owner in await flow.owners()} == {None}
            assert await flow.count("status = 'pending' AND retry_count = 0") == 100
        finally:
            await asyncio.to_thread(broker.resume)


@pytest.mark.parametrize("after_failure", ["go-on", "park"])
async def test_event_refused_for_ever_holds_back_its_aggregate_and_nothing_else(
    services: Services, tmp_path: Path, after_failure: str
) -> None:
    settings = {**REFUSED, "OUTBOX_AFTER_FAILURE": after_failure}
    async with flowing(
        fresh_database(services), services.rabbitmq.url, tmp_path, binding="thing.*", **settings
    ) as flow:
        # given
        await flow.reader.start()
        types = ["thing.changed", "nobody.wants.this", *["thing.changed"] * 3]
        first, refused, *followers = await flow.writers.record(types, "a0")
        await flow.writers.record_many(10)
        others = flow.writers.committed - {refused, *followers}

        async def has_failed() -> bool:
            return await flow.count("status = 'failed'") == 1

        # when
        await flow.start_relays(1)
        await until(lambda: flow.reader.has(others), "all other events arrive")
        await until(has_failed, "the refused event is out of attempts")
        later = {*await flow.writers.record(["thing.changed"], "a1")}
        goes_on = {*followers} if after_failure == "go-on" else set()
        await until(lambda: flow.reader.has(later | goes_on), "events flow on")
        await flow.stop_relays()
        await flow.reader.silence()

        # then
        arrived = [delivery.id for delivery in flow.reader.deliveries]
        assert {*arrived[: len(others)]} == others, "others do not wait for it"
        assert len(arrived) == len({*arrived})
        assert {*arrived} == others | later | goes_on
        assert [id for id in arrived if id in goes_on] == [*followers][: len(goes_on)]
        states = await flow.ask(
            "SELECT id, status, retry_count, last_error FROM outbox WHERE aggregate_id = 'a0' "
            "ORDER BY position"
        )
        after = "published" if goes_on else "pending"
        assert [row[:3] for row in states] == [
            (first, "published", 0),
            (refused, "failed", 3),
            *((follower, after, 0) for follower in followers),
        ]
        assert "NO_ROUTE" in states[1][3]

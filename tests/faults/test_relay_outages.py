"""Relays while the broker or the database is away, and while one event is refused for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.brokers.rabbitmq import RabbitMQConfig
from outrider.testing.services import Postgres, Server, Services
from outrider.testing.services.keeper import processes_in
from tests.support.databases import create_database
from tests.support.faults.flow import BATCH, LOOPS, Flow, flowing
from tests.support.faults.scoreboard import Scoreboard
from tests.support.faults.writers import TOO_LARGE
from tests.support.limits import FULL, MAX_WAIT_S, SEED
from tests.support.until import until, wait_until

OUTAGE = 60 if FULL else 2
CRASHES, SESSIONS = (100 if FULL else 3), 3
BROKER_CRASHES = 30 if FULL else 3
RELAYS = 3
CLIENTS = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
TERMINATE = f"""
SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE {CLIENTS}
    ORDER BY random() LIMIT {SESSIONS}) AS chosen
"""  # noqa: S608
PUBLISH_TIMEOUT = RabbitMQConfig().publish_timeout.total_seconds()
SETTINGS = {"OUTBOX_LEASE": "2", "OUTBOX_POLL_INTERVAL_MS": "500"}
REFUSED = {
    "OUTBOX_RETRY": "exponential",
    "OUTBOX_MAX_RETRIES": "3",
    "OUTBOX_POLL_INTERVAL_MS": "200",
}

pytestmark = pytest.mark.faults


@pytest.fixture
def broker(services: Services) -> Server:
    return services.victim("rabbitmq")


@pytest.fixture
def database(services: Services) -> Iterator[Postgres]:
    server = services.another(Postgres)
    yield server
    server.stop()


async def writers_go_on(flow: Flow, events: int = 50) -> None:
    goal = len(flow.writers.committed) + events
    await until(lambda: len(flow.writers.committed) >= goal, "writers go on")


@pytest.mark.fault("B1")
async def test_outage_of_the_broker_costs_no_attempts_and_ends_by_itself(
    services: Services, broker: Server, tmp_path: Path
) -> None:
    async with flowing(create_database(services), broker.url, tmp_path, **SETTINGS) as flow:
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


@pytest.mark.fault("D1", "D2", "D7", line="S-3")
async def test_crashes_of_the_database_cost_no_attempts_and_no_event(
    services: Services, database: Postgres, tmp_path: Path, scoreboard: Scoreboard
) -> None:
    async with flowing(database.url, services.rabbitmq.url, tmp_path, **SETTINGS) as flow:
        # given
        await flow.reader.start()
        relays = await flow.start_relays(RELAYS)
        before = [relay.pid for relay in relays]
        flow.writers.start(writers=8, pause=0.005)
        longest, ways = 0.0, (kill_backend, database.kill, database.stop)

        # when
        for number in range(CRASHES):
            await writers_go_on(flow)
            database.own()
            await asyncio.to_thread(ways[number % 3], *([database] if number % 3 == 0 else []))
            await asyncio.to_thread(database.start)
            longest = max(longest, await time_to_progress(database))
            await asyncio.to_thread(database.psql, TERMINATE)
        await flow.writers.stopped()
        await flow.engine.dispose()
        await flow.arrived()

        # then
        assert flow.writers.failures
        assert [relay.pid for relay in relays if relay.is_alive] == before
        verdict = await flow.verdict()
        bound = (CRASHES * (RELAYS + SESSIONS) + flow.lost_leases) * LOOPS * BATCH
        figures = {"sessions": CRASHES * SESSIONS, "first_progress": longest, "bound": bound}
        await flow.report(verdict, scoreboard, "S-3", faults=CRASHES, **figures)
        assert verdict.holds(duplicates=bound), f"{verdict}; OUTRIDER_SEED={SEED}"


def kill_backend(database: Postgres) -> None:
    """One process that serves a client; PostgreSQL then ends all others and starts anew."""
    query = f"SELECT pid FROM pg_stat_activity WHERE {CLIENTS}"  # noqa: S608
    pids = database.psql(query).split()
    victims = [p for p in processes_in(database.folder) if str(p.pid) in pids]
    victims[0].kill()
    assert wait_until(lambda: not victims[0].is_running() and database.answers(), 60)


async def time_to_progress(database: Postgres) -> float:
    """Seconds from now until the next event is settled."""

    def settled() -> int:
        return int(database.psql("SELECT count(*) FROM outbox WHERE status = 'published'"))

    began, before = time.monotonic(), await asyncio.to_thread(settled)
    while await asyncio.to_thread(settled) == before:
        assert time.monotonic() < began + MAX_WAIT_S, f"stuck; OUTRIDER_SEED={SEED}"
    return time.monotonic() - began


@pytest.mark.fault("B1", "B2", "B3", line="S-4")
@pytest.mark.parametrize("kind", ["rabbitmq", "kafka", "nats", "redis"] if FULL else ["nats"])
async def test_crashes_of_the_broker_cost_no_attempts_and_no_event(
    services: Services, tmp_path: Path, scoreboard: Scoreboard, kind: str
) -> None:
    server, database = services.another(kind), create_database(services)
    async with flowing(database, server.url, tmp_path, **SETTINGS) as flow:
        # given
        relays = await flow.start_relays(RELAYS)
        before = [relay.pid for relay in relays]
        flow.writers.start(writers=4, pause=0.02)

        # when
        for number in range(BROKER_CRASHES):
            await settled_go_on(flow)
            server.own()
            await asyncio.to_thread((server.kill, server.stop, server.pause)[number % 3])
            await asyncio.sleep(flow.chance.uniform(0, 2))
            await asyncio.to_thread(server.resume if number % 3 == 2 else server.start)
        await settled_go_on(flow)
        await flow.writers.stopped()
        await flow.reader.start()
        await flow.arrived()

        # then
        assert [relay.pid for relay in relays if relay.is_alive] == before
        verdict = await flow.verdict()
        bound = (BROKER_CRASHES * RELAYS + flow.lost_leases) * LOOPS * BATCH
        figures = {"case": kind, "faults": BROKER_CRASHES, "bound": bound}
        await flow.report(verdict, scoreboard, "S-4", **figures)
        assert verdict.holds(duplicates=bound), f"{verdict}; OUTRIDER_SEED={SEED}"
    server.stop()


async def settled_go_on(flow: Flow) -> None:
    before = await flow.count("status = 'published'")

    async def more() -> bool:
        return await flow.count("status = 'published'") > before

    await until(more, "events flow on")


def unread_by(server: Server) -> int:
    """Bytes that wait in the sockets of its port, as the kernel tells."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    to_port = [line for line in lines if line[1].endswith(f":{server.port:04X}")]
    return sum(int(line[4].partition(":")[2], 16) for line in to_port if line[3] == "01")


@pytest.mark.fault("R7", "B3")
async def test_terminated_relay_does_not_wait_longer_than_its_grace_time_for_a_hung_broker(
    services: Services, broker: Server, tmp_path: Path
) -> None:
    settings = {"OUTBOX_GRACE": "1", "OUTBOX_LEASE": "60"}
    async with flowing(create_database(services), broker.url, tmp_path, **settings) as flow:
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


@pytest.mark.fault("E1", "B6")
@pytest.mark.parametrize("after_failure", ["go-on", "park"])
async def test_event_refused_for_ever_holds_back_its_aggregate_and_nothing_else(
    services: Services, tmp_path: Path, after_failure: str
) -> None:
    url = services.rabbitmq.url
    settings = {
        **REFUSED,
        "OUTBOX_AFTER_FAILURE": after_failure,
        "OUTBOX_TO": f"{url}?max_message_size=300",
    }
    async with flowing(create_database(services), url, tmp_path, **settings) as flow:
        # given
        await flow.reader.start()
        types = ["thing.changed", TOO_LARGE, *["thing.changed"] * 3]
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
        assert len(arrived) == len({*arrived})
        assert not {*arrived} ^ (others | later | goes_on)
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
        assert "not sendable" in states[1][3]

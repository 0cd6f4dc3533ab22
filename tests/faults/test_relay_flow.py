"""Relays as processes: all arrives in order, whoever of them is killed, stopped or ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.testing.services import Services
from tests.faults.flow import BATCH, FULL, LOOPS, SEED, Flow, flowing, fresh_database, until
from tests.faults.relay_process import RelayProcess

EVENTS, AGGREGATES = (20_000, 1_000) if FULL else (3_000, 300)
KILLS, PAUSE = (60, 1.0) if FULL else (8, 0.5)
SQLITE_KILLS = 30 if FULL else 4
ZOMBIES = 20 if FULL else 3
STOPS = 10 if FULL else 3
LEASE = 10
SHORT = {"OUTBOX_LEASE": "1", "OUTBOX_POLL_INTERVAL_MS": "500"}
LONG = {"OUTBOX_LEASE": str(LEASE)}

pytestmark = pytest.mark.faults


@pytest.fixture
def places(services: Services, tmp_path: Path) -> tuple[str, str, Path]:
    """Database, broker, and a folder for logs."""
    return fresh_database(services), services.rabbitmq.url, tmp_path


async def kill_one(flow: Flow, relays: list[RelayProcess], pause: float) -> None:
    """One of those at work, in the midst of a burst of events; it is started again at once."""
    await asyncio.sleep(flow.chance.uniform(0.5, 1) * pause)
    await until(lambda: any(relay.is_ready for relay in relays), "a relay is at work")
    goal = len(flow.reader.deliveries) + flow.chance.randint(1, 500)
    burst = asyncio.create_task(flow.writers.record_many(8))
    await until(lambda: len(flow.reader.deliveries) >= goal, "the burst has begun to arrive")
    flow.chance.choice([relay for relay in relays if relay.is_ready]).restart()
    await burst


async def test_all_events_of_many_writers_arrive_once_and_in_order(
    places: tuple[str, str, Path],
) -> None:
    async with flowing(*places, aggregates=AGGREGATES, **LONG) as flow:
        # given
        await flow.reader.start()
        await flow.start_relays(3)

        # when
        flow.writers.start(writers=8, events=EVENTS)
        await flow.writers.finished()
        verdict = await flow.verdict()

        # then
        assert len(flow.writers.committed) == verdict.events == EVENTS
        assert verdict.holds(duplicates=0), f"{verdict}; OUTRIDER_SEED={SEED}"


async def test_killed_relays_lose_nothing_and_repeat_only_what_they_had_in_hand(
    places: tuple[str, str, Path],
) -> None:
    async with flowing(*places, aggregates=AGGREGATES, **SHORT) as flow:
        # given
        await flow.reader.start()
        relays = await flow.start_relays(3)
        flow.writers.start(writers=8, pause=0.005)

        # when
        for _ in range(KILLS):
            await kill_one(flow, relays, PAUSE)
        await flow.writers.stopped()
        verdict = await flow.verdict()

        # then
        in_hand = (KILLS + flow.lost_leases) * BATCH * LOOPS
        assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"


async def test_relay_that_was_stopped_beyond_its_lease_does_no_harm(
    places: tuple[str, str, Path],
) -> None:
    async with flowing(*places, aggregates=AGGREGATES, **SHORT) as flow:
        # given
        await flow.reader.start()
        relays = await flow.start_relays(3)
        flow.writers.start(writers=8, pause=0.005)

        # when
        for _ in range(ZOMBIES):
            await pause_beyond_its_lease(flow, flow.chance.choice(relays))
        await flow.writers.stopped()
        verdict = await flow.verdict()

        # then
        in_hand = (ZOMBIES + flow.lost_leases) * BATCH * LOOPS
        assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"


async def pause_beyond_its_lease(flow: Flow, relay: RelayProcess) -> None:
    """Until others have its lanes and their events flow on; then until it has lanes again."""
    held: dict[int, object] = {}

    async def holds_lanes() -> bool:
        held.clear()
        held.update(await flow.lanes_of(relay))
        return bool(held)

    async def is_robbed() -> bool:
        owners = await flow.owners()
        return all(o.relay not in (None, *held.values()) for o in owners if o.lane in held)

    await until(holds_lanes, "the relay has lanes")
    relay.pause()
    await until(is_robbed, "its lanes are taken over")
    lanes = ", ".join(map(str, held))
    mine = f"status = 'published' AND lane IN ({lanes})"
    before = await flow.count(mine)

    async def flows_on() -> bool:
        return await flow.count(mine) > before

    await until(flows_on, "events of its lanes flow on")
    relay.go_on()
    await until(holds_lanes, "the relay goes on")


async def test_terminated_relay_settles_what_was_confirmed_and_publishes_nothing_more(
    places: tuple[str, str, Path],
) -> None:
    async with flowing(*places, aggregates=100, **LONG) as flow:
        # given
        await flow.reader.start()
        left = []

        # when
        for _ in range(STOPS):
            await flow.writers.record_many(30)
            left.append(await terminate_in_mid_batch(flow))
        flow.start_relay()
        verdict = await flow.verdict()

        # then
        print(f"left by each: {left}")
        assert any(left), "no relay was ended in the middle of its work"
        assert verdict.holds(duplicates=0), f"{verdict}; OUTRIDER_SEED={SEED}"


async def terminate_in_mid_batch(flow: Flow) -> int:
    """How many events one relay left when it was asked to end, after some were through."""
    relay, goal = flow.start_relay(), len(flow.reader.deliveries) + flow.chance.randint(1, 1000)
    await until(lambda: len(flow.reader.deliveries) >= goal, "the relay is in the midst of it")
    relay.terminate()
    await until(lambda: not relay.is_alive, "the relay ends within its grace time", 25)
    assert relay.exit_code == 0

    await flow.reader.mark()
    unique = {delivery.id for delivery in flow.reader.deliveries}
    assert await flow.count("status = 'published'") == len(unique), "confirmed is settled"
    assert {owner.relay for owner in await flow.owners()} == {None}, "a successor need not wait"
    await flow.reader.silence()
    assert len(unique) == len(flow.reader.deliveries), "nothing came afterwards, nothing twice"
    return await flow.count("status = 'pending'")


async def test_relays_share_the_lanes_evenly_and_inherit_those_of_one_that_leaves(
    places: tuple[str, str, Path],
) -> None:
    async with flowing(*places, **LONG) as flow:

        async def are_even(among: list[RelayProcess]) -> bool:
            held = [len(await flow.lanes_of(relay)) for relay in among]
            return sum(held) == 64 and max(held) - min(held) <= 1

        # given
        relays = await flow.start_relays(3)
        await until(lambda: are_even(relays), "an even share", LEASE)
        (gone,) = {*(await flow.lanes_of(relays[0])).values()}

        # when
        relays[0].terminate()
        await until(lambda: not relays[0].is_alive, "the relay ends")

        # then
        assert gone not in {owner.relay for owner in await flow.owners()}
        await until(lambda: are_even(relays[1:]), "the others have its lanes", LEASE)
        await flow.stop_relays()


async def test_killed_relays_on_one_sqlite_file_lose_nothing(
    services: Services, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'outbox.db'}"
    settings = {**SHORT, "OUTBOX_POLL_INTERVAL_MS": "50"}
    async with flowing(
        database, services.rabbitmq.url, tmp_path, aggregates=100, **settings
    ) as flow:
        # given
        await flow.reader.start()
        relays = await flow.start_relays(2)
        flow.writers.start(writers=2, pause=0.005)

        # when
        for _ in range(SQLITE_KILLS):
            await kill_one(flow, relays, PAUSE)
        await flow.writers.stopped()
        verdict = await flow.verdict()

        # then
        in_hand = (SQLITE_KILLS + flow.lost_leases) * BATCH * LOOPS
        assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"

"""Relays as processes: all arrives in order, whoever of them is killed, stopped or ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from uuid import UUID

import pytest

from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.flow import BATCH, LOOPS, Flow, flowing
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL, SEED
from tests.support.processes.forked import ForkedRelay
from tests.support.processes.relay_app import STEPS
from tests.support.until import until

EVENTS, AGGREGATES = (20_000, 1_000) if FULL else (3_000, 300)
KILLS = 500 if FULL else 20
ZOMBIES = 200 if FULL else 6
STOPS = 200 if FULL else 5
SINKS = ["rabbitmq", "kafka", "nats", "redis"]
PLACES = [(store, sink) for store in ("postgresql", "sqlite") for sink in SINKS]
SHORT_PLACES = [("postgresql", "rabbitmq"), ("sqlite", "redis")]
LEASE = 10
SHORT = {"OUTBOX_LEASE": "1", "OUTBOX_POLL_INTERVAL_MS": "500"}
LONG = {"OUTBOX_LEASE": str(LEASE)}

pytestmark = pytest.mark.faults


@pytest.fixture
def places(services: Services, tmp_path: Path) -> tuple[str, str, Path]:
    """Database, broker, and a folder for logs."""
    return create_database(services), services.rabbitmq.url, tmp_path


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


@pytest.mark.fault("R1", "R2", "D9", "D10", "D20", line="S-1")
@pytest.mark.parametrize(("store", "sink"), PLACES if FULL else SHORT_PLACES)
async def test_killed_relays_lose_nothing_and_repeat_only_what_they_had_in_hand(
    services: Services, tmp_path: Path, scoreboard: Scoreboard, store: str, sink: str
) -> None:
    is_file = store == "sqlite"
    database = f"sqlite:///{tmp_path / 'outbox.db'}" if is_file else create_database(services)
    settings = {**SHORT, "OUTBOX_POLL_INTERVAL_MS": "50" if is_file else "500"}
    broker, kills = getattr(services, sink).url, KILLS if FULL or not is_file else 6
    async with flowing(database, broker, tmp_path, aggregates=AGGREGATES, **settings) as flow:
        # given
        await flow.reader.start()
        flow.writers.start(writers=2 if is_file else 8, pause=0.005)

        # when
        await kill_relays(flow, kills, at_once=3 if is_file else 4)
        await flow.writers.stopped()
        await flow.start_relays(2)
        verdict = await flow.verdict()

        # then
        bound = (kills + flow.lost_leases) * BATCH * LOOPS
        case = f"{store} + {sink}"
        await flow.report(verdict, scoreboard, "S-1", case=case, faults=kills, bound=bound)
        assert verdict.holds(duplicates=bound), f"{verdict}; OUTRIDER_SEED={SEED}"


async def kill_relays(flow: Flow, kills: int, at_once: int) -> None:
    """Each dies at a step of its own choice, or at a moment of ours; another begins at once."""
    living = [Doomed(flow) for _ in range(at_once)]

    def somebody_died() -> bool:
        for number, relay in enumerate(living):
            if relay.has_died():
                living[number] = Doomed(flow)
                return True
        return False

    for _ in range(kills):
        await until(somebody_died, "the next relay dies")
    for relay in living:
        relay.process.kill()


class Doomed:
    """A relay from its start to its death, which comes after it has begun to work."""

    def __init__(self, flow: Flow) -> None:
        step = flow.chance.choice([None, None, *STEPS])
        self.process = flow.start_relay(**({"FAULT_AT": step} if step else {}))
        self._left = flow.chance.uniform(0.05, 1.0)
        self._ready_at: float | None = None
        self._by_itself = step is not None

    def has_died(self) -> bool:
        if not self.process.is_alive:
            assert self.process.exit_code == -signal.SIGKILL, self.process.text
            return True
        now = time.monotonic()
        if self._ready_at is None:
            self._ready_at = now if self.process.is_ready else None
        # One that has nothing to do never comes to its step.
        elif now - self._ready_at > (5 if self._by_itself else self._left):
            self.process.kill()
            return True
        return False


@pytest.mark.fault("R4", "R5", line="S-2")
async def test_relay_that_was_stopped_beyond_its_lease_does_no_harm(
    places: tuple[str, str, Path], scoreboard: Scoreboard
) -> None:
    async with flowing(*places, aggregates=AGGREGATES, **SHORT) as flow:
        # given
        await flow.reader.start()
        await flow.start_relays(2)
        steps = ("after_publish", "after_publish", "after_claim", "in_publish", "before_lease")
        doomed = [
            flow.start_relay(FAULT_AT=step, FAULT_SIGNAL="SIGSTOP", FAULT_ODDS="0.2")
            for step in steps
        ]
        flow.writers.start(writers=8, pause=0.005)

        # when
        zombies = Zombies(flow, doomed)
        for _ in range(ZOMBIES):
            await until(zombies.wake, "the next one is robbed")
        await flow.writers.stopped()
        for relay in doomed:
            relay.kill()
        verdict = await flow.verdict()

        # then
        bound = (ZOMBIES + len(doomed) + flow.lost_leases) * BATCH * LOOPS
        figures = {"rejected": flow.seen["settle rejected"], "stale": flow.stale, "bound": bound}
        await flow.report(verdict, scoreboard, "S-2", faults=ZOMBIES, **figures)
        assert flow.stale == 0
        assert flow.seen["settle rejected"] > 0
        assert verdict.holds(duplicates=bound), f"{verdict}; OUTRIDER_SEED={SEED}"


class Zombies:
    """Relays that stop themselves, and go on when others have all that was theirs."""

    def __init__(self, flow: Flow, relays: list[ForkedRelay]) -> None:
        self._flow, self._relays = flow, relays
        self._robbed: dict[int, set[UUID]] = {}

    async def wake(self) -> bool:
        """Whether one that had lanes when it stopped was let go on."""
        for relay in self._relays:
            if relay.is_stopped and await self._is_robbed(relay):
                had_lanes = bool(self._robbed.pop(relay.pid))
                relay.go_on()
                return had_lanes
        return False

    async def _is_robbed(self, relay: ForkedRelay) -> bool:
        held = await self._flow.owners()
        if any(owner.relay and not owner.name for owner in held):
            return False  # a dead one's lanes, in the moment before they are taken: perhaps its own
        theirs = {owner.relay for owner in held if owner.relay and owner.name == relay.name}
        robbed = self._robbed.setdefault(relay.pid, theirs)
        return not robbed & {owner.relay for owner in held}


@pytest.mark.fault("R7", line="S-10")
async def test_terminated_relay_settles_what_was_confirmed_and_publishes_nothing_more(
    places: tuple[str, str, Path], scoreboard: Scoreboard
) -> None:
    async with flowing(*places, aggregates=100, **LONG) as flow:
        # given
        await flow.reader.start()
        left = []

        # when
        while sum(map(bool, left)) < STOPS:  # one that had done all was not in the middle
            await flow.writers.record_many(6)
            left.append(await terminate_in_mid_batch(flow))
        flow.start_relay()
        verdict = await flow.verdict()

        # then
        await flow.report(verdict, scoreboard, "S-10", faults=sum(map(bool, left)))
        assert verdict.holds(duplicates=0), f"{verdict}; OUTRIDER_SEED={SEED}"


async def terminate_in_mid_batch(flow: Flow) -> int:
    """How many events one relay left when it was asked to end, after some were through."""
    relay, goal = flow.start_relay(), len(flow.reader.deliveries) + flow.chance.randint(1, 300)
    await until(lambda: len(flow.reader.deliveries) >= goal, "the relay is in the midst of it")
    relay.terminate()
    await until(lambda: not relay.is_alive, "the relay ends within its grace time", 25)
    assert relay.exit_code == 0

    await flow.reader.mark()
    unique = {delivery.id for delivery in flow.reader.deliveries}
    assert await flow.count("status = 'published'") == len(unique), "confirmed is settled"
    assert {owner.relay for owner in await flow.owners()} == {None}, "a successor need not wait"
    assert len(unique) == len(flow.reader.deliveries), "nothing came twice"
    return await flow.count("status = 'pending'")


async def test_relays_share_the_lanes_evenly_and_inherit_those_of_one_that_leaves(
    places: tuple[str, str, Path],
) -> None:
    async with flowing(*places, **LONG) as flow:

        async def are_even(among: list[ForkedRelay]) -> bool:
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

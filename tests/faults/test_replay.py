"""A replay that is killed and interrupted again and again: each event once more, in order."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.flow import Flow, flowing
from tests.support.faults.queue_reader import Delivery
from tests.support.limits import FULL, SEED
from tests.support.processes.relay_process import RelayProcess
from tests.support.until import until

RATE, STOPS, STEPS = (8_000, 12, 7) if FULL else (500, 2, 4)
AGGREGATES = 100
# Stopped after some steps of a tenth of a second each, none comes to its end by itself.
EACH = STOPS * STEPS * RATE // 10 // AGGREGATES + 10
INTERRUPTED = 130

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("kind", "relays"), [("postgresql", 2), ("sqlite", 1)] if FULL else [("postgresql", 2)]
)
async def test_replay_that_is_killed_and_interrupted_sends_each_event_once_more_in_order(
    services: Services, tmp_path: Path, kind: str, relays: int
) -> None:
    url = create_database(services) if kind == "postgresql" else f"sqlite:///{tmp_path}/outbox.db"
    events = EACH * AGGREGATES
    settings = {"OUTBOX_POLL_INTERVAL_MS": "100"}
    async with flowing(url, services.rabbitmq.url, tmp_path, **settings) as flow:
        # given
        await flow.writers.record_many(EACH)
        await flow.reader.start()
        await flow.start_relays(relays)
        await until(lambda: len(flow.reader.deliveries) == events, "all were published")
        await flow.arrived()

        # when: by turns with a signal that it hears and with one that it does not
        for number in range(STOPS):
            target = await moved(flow) + RATE // 10 * flow.chance.randint(1, STEPS)
            which = ("--resume", "1") if number else ("--yes",)
            process = start(flow, *which, "--rate", str(RATE))
            await until(lambda: has_moved(flow, process, target), f"{target} were replayed")  # noqa: B023
            stop(process, signal.SIGINT if number % 2 else signal.SIGKILL)
        last = start(flow, "--resume", "1")
        await until(lambda: not last.is_alive, "the replay is done")
        await until(lambda: len(flow.reader.deliveries) >= 2 * events, "all came once more")
        await flow.arrived()
        await flow.stop_relays()
        await flow.reader.silence()

        # then
        assert json.loads(last.text.splitlines()[-1]) == {"replay": 1, "events": events}
        first, again = flow.reader.deliveries[:events], flow.reader.deliveries[events:]
        print(f"OUTRIDER_SEED={SEED}: {len(again)} replayed, {STOPS} times stopped")
        assert sorted(d.id for d in again) == sorted(d.id for d in first)
        assert {d.replay for d in first} == {None}
        assert {d.replay for d in again} == {"1"}
        assert reordered(again) == []


def start(flow: Flow, *options: str) -> RelayProcess:
    log = flow.folder / f"replay-{len(flow.relays)}.log"
    process = RelayProcess({"DATABASE_URL": flow.database}, log, ("replay", *options, "--json"))
    flow.relays.append(process)  # which the flow ends, whatever happens
    return process


async def moved(flow: Flow) -> int:
    found = await flow.ask("SELECT events FROM outbox_actions")
    return int(found[0][0]) if found else 0


async def has_moved(flow: Flow, process: RelayProcess, number: int) -> bool:
    """By this process or at the end of the last one; this one is at work in any case."""
    assert process.is_alive, process.text
    return "if interrupted" in process.text and await moved(flow) >= number


def stop(process: RelayProcess, number: signal.Signals) -> None:
    """The process is gone afterwards; told by SIGINT, it says how to go on."""
    if number == signal.SIGKILL:
        process.kill()
        return
    process.interrupt()
    assert process.ended() == INTERRUPTED
    assert "resume with: outrider replay --resume 1" in process.text


def reordered(deliveries: list[Delivery]) -> list[str]:
    per_aggregate = defaultdict(list)
    for delivery in deliveries:
        per_aggregate[delivery.aggregate].append(delivery.n)
    return [a for a, numbers in per_aggregate.items() if numbers != sorted(numbers)]

"""Whatever producers, relays, time and people do, in whatever order: the promises hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import SqlOutboxStore
from tests.support.databases import engine_with_outbox, transactional_sqlite
from tests.support.limits import FULL
from tests.support.store_world import (
    AGGREGATES,
    WINDOW,
    MemoryWorld,
    Relay,
    SqlWorld,
    World,
)

aggregates = st.lists(st.sampled_from(AGGREGATES), max_size=3)
numbers, limits = st.integers(0, 1), st.integers(1, WINDOW)
waits = st.sampled_from([timedelta(0), timedelta(hours=1)])
outcomes = st.sampled_from(["accepted", "refused", "accepted", "lost", "arrived"])


class StoreMachine(RuleBasedStateMachine):
    """Steps that may come in any order; hypothesis looks for one that breaks something."""

    def __init__(self, runner: asyncio.Runner, make: Callable[[bool], World]) -> None:
        super().__init__()
        self._runner, self._make = runner, make
        self.world: World

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        self._runner.run(step)

    @initialize(park=st.booleans(), some=aggregates)
    def begin(self, park: bool, some: list[int]) -> None:
        self.world = self._make(park)
        self.run(self.world.record([*AGGREGATES[:1], *some], [], "commit"))

    @rule(kept=aggregates, undone=aggregates, end=st.sampled_from(["commit", "commit", "rollback"]))
    def record(self, kept: list[int], undone: list[int], end: Any) -> None:
        # Whoever changes an aggregate waits for whoever changed it before.
        free = [each for each in kept if each not in self.world.open]
        self.run(self.world.record(free, undone, end))

    @precondition(lambda self: self.world.commits_late)
    @rule(aggregate=st.sampled_from(AGGREGATES))
    def begin_late(self, aggregate: int) -> None:
        if aggregate not in self.world.open:
            self.run(self.world.begin_late(aggregate))

    @precondition(lambda self: self.world.open)
    @rule(data=st.data(), commits=st.booleans())
    def end_late(self, data: st.DataObject, commits: bool) -> None:
        aggregate = data.draw(st.sampled_from(sorted(self.world.open)))
        self.run(self.world.end_late(aggregate, commits=commits))

    @rule(number=numbers)
    def lease(self, number: int) -> None:
        self.run(self.world.lease(self.world.relays[number]))

    @rule(number=numbers, steps=st.integers(1, 8), data=st.data())
    def go_on(self, number: int, steps: int, data: st.DataObject) -> None:
        for _ in range(steps):
            self._step(self.world.relays[number], data)

    def _step(self, relay: Relay, data: st.DataObject) -> None:
        """The relay's next step, whatever has become of its lanes meanwhile."""
        if relay.outcomes:
            self.run(self.world.settle(relay, data.draw(waits)))
        elif relay.hand:
            self.run(self.world.publish(relay, lambda: data.draw(outcomes)))
        elif relay.fresh and relay.lanes:
            self.run(self.world.claim(relay, data.draw(limits)))
        else:
            self.run(self.world.lease(relay))

    @rule(number=numbers)
    def adjust_crash_count(self, number: int) -> None:
        if self.world.relays[number].hand:
            self.run(self.world.adjust_crash_count(self.world.relays[number]))

    @rule(number=numbers)
    def take_over(self, number: int) -> None:
        """Everybody was silent for longer than the lease, dead or not; this one is back first."""
        self.run(self.world.expire())
        self.run(self.world.lease(self.world.relays[number]))

    @rule(number=numbers)
    def crash(self, number: int) -> None:
        self.run(self.world.crash(number))

    @rule(seconds=st.sampled_from([0.6, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.run(self.world.end_waits())

    @rule(limit=st.integers(1, 5))
    def forget(self, limit: int) -> None:
        self.run(self.world.forget(limit))

    @rule(action=st.sampled_from(["retry", "discard"]))
    def help(self, action: Any) -> None:
        self.run(self.world.help(action))

    @invariant()
    def promises(self) -> None:
        if hasattr(self, "world"):
            self.run(self.world.check())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.run(self.world.drain())
            finally:
                self.run(self.world.close())


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def check(runner: asyncio.Runner, make: Callable[[bool], World], *, small: int, large: int) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(runner, make),
        settings=settings(
            max_examples=large if FULL else small,
            stateful_step_count=50 if FULL else 20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "sqlite+aiosqlite"])
def test_store_keeps_its_promises_whatever_happens_in_whatever_order(
    driver: str, runner: asyncio.Runner, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine = runner.run(engine_with_outbox(driver, request, tmp_path))
    if driver.startswith("sqlite"):
        transactional_sqlite(engine)
        runner.run(engine.dispose())
    runner.run(_prepare(engine))

    check(runner, lambda park: SqlWorld(engine, park=park), small=20, large=1000)

    runner.run(engine.dispose())


def test_outbox_in_memory_keeps_the_promises_of_the_real_ones(runner: asyncio.Runner) -> None:
    check(runner, lambda park: MemoryWorld(park=park), small=100, large=5000)


async def _prepare(engine: AsyncEngine) -> None:
    """The rows of the lanes, which a store makes when it is opened."""
    store = SqlOutboxStore(engine)
    await store.open(lambda _word: None)
    await store.close()

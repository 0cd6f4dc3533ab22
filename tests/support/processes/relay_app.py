"""A relay that can be hurt at every step: it kills or stops itself there, and says what it saw.

FAULT_AT names the step, FAULT_SIGNAL what to do there, FAULT_ODDS how rarely. Nothing of this is
in the library: store and publisher are wrapped here.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from outrider import OutboxRelay, SqlOutboxStore
from outrider import signals as s
from outrider.cli.publishers import make_publisher
from outrider.observability.logging import log_signals
from outrider.settings.settings import read_settings
from outrider.store.engines import open_engine

COMMAND = ("relay", "tests.support.processes.relay_app:relay")
STEPS = ("after_claim", "in_publish", "after_publish", "in_settle", "after_settle", "before_lease")
SEEN = "seen: "
STALE = "a stale settle changed: "

Call = Callable[..., Awaitable[Any]]


def see(what: str, times: int = 1) -> None:
    print(f"{SEEN}{times} {what}", file=sys.stderr, flush=True)


class Steps:
    """Kills or stops this process when it reaches the chosen step."""

    def __init__(self) -> None:
        self._at = os.environ.get("FAULT_AT")
        self._signal = signal.Signals[os.environ.get("FAULT_SIGNAL", "SIGKILL")]
        self._odds = float(os.environ.get("FAULT_ODDS", "0.3"))
        self._chance = random.Random(f"{os.environ.get('OUTRIDER_SEED')}.{os.getpid()}")

    def pass_by(self, step: str) -> bool:
        """Whether the process was stopped here; it continues on SIGCONT."""
        if step != self._at or self._chance.random() > self._odds:
            return False
        os.kill(os.getpid(), self._signal)
        return True

    def in_the_midst(self, step: str) -> None:
        """At a random moment after the beginning of the call."""
        if step == self._at:
            delay = self._chance.uniform(0, 0.004)
            asyncio.get_running_loop().call_later(delay, self.pass_by, step)


def watched_claim(claim: Call, steps: Steps) -> Call:
    async def wrapped(*arguments: Any) -> Any:
        batch = await claim(*arguments)
        if batch:
            steps.pass_by("after_claim")
        return batch

    return wrapped


def watched_settle(settle: Call, steps: Steps) -> Call:
    async def wrapped(relay: Any, tokens: Any, accepted: Any, refused: Any, unknown: Any) -> Any:
        was_stopped = steps.pass_by("after_publish")
        steps.in_the_midst("in_settle")
        changed = await settle(relay, tokens, accepted, refused, unknown)
        steps.pass_by("after_settle")
        if changed < len(accepted) + len(refused):
            see("settle rejected")
        if was_stopped:
            print(f"{STALE}{changed}", file=sys.stderr, flush=True)
        return changed

    return wrapped


def watched_lease(lease: Call, steps: Steps) -> Call:
    async def wrapped(*arguments: Any) -> Any:
        steps.pass_by("before_lease")
        return await lease(*arguments)

    return wrapped


def watched_publish(publish: Call, steps: Steps, is_stopping: Callable[[], bool]) -> Call:
    async def wrapped(envelopes: Any) -> None:
        steps.in_the_midst("in_publish")
        try:
            await publish(envelopes)
        except asyncio.CancelledError:
            if not is_stopping():
                see("stopped before the lease ended")
            raise

    return wrapped


def on_signal(signal: s.Signal) -> None:
    log_signals(signal)
    match signal:
        case s.LanesChanged(orphaned=orphaned) if orphaned:
            see("take-over", orphaned)
        case s.LeaseWasLost(lanes=lanes) if lanes:
            see("renewal lost")
        case s.BatchPublished(unknown=unknown) if unknown:
            see("unknown outcome", unknown)


@asynccontextmanager
async def relay() -> AsyncIterator[OutboxRelay]:
    settings, steps = read_settings({}, os.environ), Steps()
    process = settings.process
    assert process.database is not None
    engine = open_engine(process.database)
    sink, park = process.sink, process.after_failure == "park"
    store: Any = SqlOutboxStore(engine, sink=sink, park=park)
    publisher: Any = make_publisher(process)
    # Relays die so often here that three crashes with one event do not make it the cause.
    config = replace(settings.relay, max_crashes=10**6)
    made = OutboxRelay(store, publisher, config, on_signal=on_signal)
    store.claim = watched_claim(store.claim, steps)
    store.settle = watched_settle(store.settle, steps)
    store.lease = watched_lease(store.lease, steps)
    stopping = made._stopping.is_set
    publisher.publish_all = watched_publish(publisher.publish_all, steps, stopping)
    try:
        yield made
    finally:
        await engine.dispose()

"""What the parts of one relay share: its settings, its lanes, and how long they are its own."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from outrider.errors import ConfigurationError
from outrider.pauses import Pause, sleep_unless
from outrider.retry import RetryPolicy, SteppedRetry
from outrider.signals import (
    LanesChanged,
    LeaseWasLost,
    SinkAvailable,
    SinkUnavailable,
    StoreAvailable,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from outrider.ports import EventPublisher, Lease, OutboxStore
    from outrider.signals import OnSignal


@dataclass(frozen=True, kw_only=True)
class RelayConfig:
    """How a relay works; the defaults suit a service with one relay or a few."""

    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    """What people see; which relay it is, is decided by an id made at each start."""
    batch_size: int = 100
    """Most events of one batch, and each loop has one; larger is faster, and repeats more after
    a crash."""
    batch_bytes: int = 16 * 1024 * 1024
    """Most payload in hand at once; bounds memory when events are large."""
    poll_interval: timedelta = timedelta(seconds=5)
    """How long to wait for a wake-up before looking anyway."""
    lease: timedelta = timedelta(seconds=10)
    """How long a dead relay's lanes stay its own; shorter takes over sooner, renews more often."""
    loops: int = 2
    """Each has lanes of its own: one publishes while another claims or settles."""
    publish_timeout: timedelta = timedelta(seconds=30)
    """How long the sink may take for one batch."""
    retry: RetryPolicy = field(default_factory=SteppedRetry)
    """When a refused event is tried again, and when it counts as failed."""
    max_retries: int | None = None
    """How often an event may be refused at most, whatever the policy says."""
    max_crashes: int = 3
    """How many relays may die with an event in hand before it is set aside."""
    retention: timedelta | None = timedelta(days=7)
    """How long published events are kept; None keeps them."""
    grace: timedelta = timedelta(seconds=25)
    """How long `stop` waits for what is in hand."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {rule}"
            for name, rule, fine in (
                ("batch_size", "at least 1", self.batch_size >= 1),
                ("batch_bytes", "at least 1", self.batch_bytes >= 1),
                ("loops", "from 1 to 64", 1 <= self.loops <= 64),
                ("lease", "at least 1 second", self.lease >= timedelta(seconds=1)),
                ("poll_interval", "above 0", self.poll_interval > timedelta(0)),
                ("publish_timeout", "above 0", self.publish_timeout > timedelta(0)),
                ("max_crashes", "at least 1", self.max_crashes >= 1),
            )
            if not fine
        ]
        if problems:
            raise ConfigurationError("relay: " + "; ".join(problems))


class RelayState:
    """Lanes with their tokens, and the time until which this process may count on them."""

    def __init__(
        self,
        store: OutboxStore,
        publisher: EventPublisher,
        config: RelayConfig,
        signal: OnSignal,
    ) -> None:
        self.id, self.signal = uuid4(), signal
        self.store, self.publisher, self.config = store, publisher, config
        self.sink = store.sink
        self.lanes: dict[int, int] = {}
        self.careful: set[int] = set()
        self.leaving: set[int] = set()
        self._releasing: set[int] = set()
        self._released: set[int] = set()
        self.valid_until = 0.0
        self.stopping = asyncio.Event()
        self._sink_pause, self._store_pause = Pause(), Pause()

    @property
    def lease_is_valid(self) -> bool:
        return asyncio.get_running_loop().time() < self.valid_until

    @property
    def trouble(self) -> str | None:
        if self._store_pause.lasts:
            return "the database is unavailable"
        return f"sink {self.sink} is unavailable" if self._sink_pause.lasts else None

    async def renew(self) -> bool:
        """Extend the lease and take or mark lanes for a fair share; whether lanes changed."""
        started, self._released = asyncio.get_running_loop().time(), set(self._releasing)
        lease = await self.store.lease(self.id, self.config.name, self.config.lease)
        # A third of the lease is kept back for whatever delays us between here and there.
        self.valid_until = started + self.config.lease.total_seconds() * 2 / 3
        return self._hold(lease)

    def _hold(self, lease: Lease) -> bool:
        # What was released while the answer was on its way is not ours, whatever it says.
        held = {lane: token for lane, token in lease.lanes.items() if lane not in self._released}
        before, self.lanes = self.lanes, held
        self.leaving = set(lease.surplus) & held.keys()
        self.careful = (self.careful & self.lanes.keys()) | lease.orphaned
        lost = [lane for lane, token in before.items() if self.lanes.get(lane) != token]
        if lost:
            self.signal(LeaseWasLost(sink=self.sink, lanes=len(lost), events=0))
        if self.lanes == before:
            return bool(self.leaving)
        self._say_lanes(len(lease.orphaned))
        return True

    def _say_lanes(self, orphaned: int) -> None:
        name, lanes = self.config.name, len(self.lanes)
        self.signal(LanesChanged(relay=name, sink=self.sink, lanes=lanes, orphaned=orphaned))

    async def release(self, lanes: set[int]) -> None:
        self._releasing |= lanes
        self._released |= lanes
        self.leaving -= lanes
        for lane in lanes:
            self.lanes.pop(lane, None)
        try:
            await self.store.release(self.id, lanes)
        finally:
            self._releasing -= lanes
        self._say_lanes(0)

    async def store_is_down(self, error: Exception) -> None:
        wait = self._store_pause.longer()
        if self._store_pause.began:
            self.signal(StoreUnavailable(sink=self.sink, reason=str(error), wait=wait))
        await sleep_unless(self.stopping, wait)

    def store_is_up(self) -> None:
        if self._store_pause.end():
            self.signal(StoreAvailable(sink=self.sink))

    async def sink_is_down(self, reason: str) -> None:
        wait = self._sink_pause.longer()
        if self._sink_pause.began:
            self.signal(SinkUnavailable(sink=self.sink, reason=reason, wait=wait))
        await sleep_unless(self.stopping, wait)

    def sink_is_up(self) -> None:
        if self._sink_pause.end():
            self.signal(SinkAvailable(sink=self.sink))

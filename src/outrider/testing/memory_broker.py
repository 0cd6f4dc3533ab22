"""A broker in memory, for tests without a server: groups, dead letters and outages."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from outrider.errors import BrokerUnavailable, DecodeError, InvalidEvent
from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.outcomes import ACCEPTED, HELD_BACK, Outcome, Refused, Unknown, raise_unless_accepted
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outrider.events.envelope import EventEnvelope


@dataclass(frozen=True)
class MemoryMessage:
    """What a real broker would keep: CloudEvents attributes and a body."""

    attributes: Mapping[str, str]
    data: bytes


@dataclass(frozen=True)
class MemoryDeadLetter:
    """A message that a group moved to its dead letters, and why."""

    group: str
    message: MemoryMessage
    reason: str


@dataclass
class _Group:
    """What one group has acknowledged and received so far."""

    name: str
    acknowledged: set[int] = field(default_factory=set)
    suspects: set[int] = field(default_factory=set)
    """Held by a source, or by one that was dropped without `close`, as if its process had died."""
    crash_counts: Counter[int] = field(default_factory=Counter)
    # A weak reference: a source that was dropped without `close` must not block the others.
    active: ref[MemorySource] | None = None


class MemoryBroker:
    """Keeps all messages in order, and delivers each of them to every group.

    `refuse` returns the reason why an event is refused, or None. An idle source waits for
    `receive_wait`. Between `stop` and `start` the broker is unavailable.
    """

    def __init__(
        self,
        *,
        refuse: Callable[[EventEnvelope], str | None] = lambda _: None,
        receive_wait: timedelta = timedelta(seconds=1),
    ) -> None:
        self.refuse = refuse
        self._receive_wait = receive_wait.total_seconds()
        self.messages: list[MemoryMessage] = []
        self.dead_letters: list[MemoryDeadLetter] = []
        self._running = True
        self._groups: dict[str, _Group] = {}
        self._sources: WeakSet[MemorySource] = WeakSet()
        self._waiting: set[asyncio.Event] = set()

    def publisher(self) -> MemoryPublisher:
        return MemoryPublisher(self)

    def source(self, group: str = "default") -> MemorySource:
        return MemorySource(self, group)

    @property
    def events(self) -> list[EventEnvelope]:
        """The messages, decoded."""
        return [from_attributes(message.attributes, message.data) for message in self.messages]

    def put(self, data: bytes, attributes: Mapping[str, str] | None = None) -> None:
        """Store a message as it is, even if it is no event."""
        self._check_reachable()
        self.messages.append(MemoryMessage(attributes or {}, data))
        self._wake()

    async def handled(self, group: str = "default") -> None:
        """Return when the group has acknowledged or dead-lettered every message."""
        while len(self._group(group).acknowledged) < len(self.messages):
            await self._wait_for_change()

    def stop(self) -> None:
        """Begin an outage. Deliveries that are not acknowledged are lost, and come again."""
        self._running = False
        for source in self._sources:
            source._lose()

    def start(self) -> None:
        self._running = True
        self._wake()

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group(name))

    def _check_reachable(self) -> None:
        if not self._running:
            raise BrokerUnavailable("the memory broker is stopped")

    def _wake(self) -> None:
        for waiting in self._waiting:
            waiting.set()

    async def _wait_for_change(self) -> None:
        """Return when a message may have arrived, or after `receive_wait`."""
        waiting = asyncio.Event()
        self._waiting.add(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._receive_wait):
                    await waiting.wait()
        finally:
            self._waiting.discard(waiting)


class MemoryPublisher:
    """Publishes to a MemoryBroker, one event after the other."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._closed = False

    def __repr__(self) -> str:
        return "<MemoryPublisher>"

    async def open(self) -> None:
        self._broker._check_reachable()
        self._closed = False

    async def close(self) -> None:
        self._closed = True

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        outcomes: list[Outcome] = []
        stopped: set[tuple[str, str]] = set()
        for envelope in envelopes:
            aggregate = (envelope.aggregate_type, envelope.aggregate_id)
            outcome = HELD_BACK if aggregate in stopped else await self._send(envelope)
            if outcome is not ACCEPTED:
                stopped.add(aggregate)
            outcomes.append(outcome)
        raise_unless_accepted(outcomes)

    async def _send(self, envelope: EventEnvelope) -> Outcome:
        await asyncio.sleep(0)  # gives other tasks a turn, so that the call can be cancelled
        if self._closed:
            return Unknown(f"{self!r} was closed")
        if reason := self._broker.refuse(envelope):
            return Refused(reason)
        try:
            self._broker.put(envelope.data, to_attributes(envelope, "memory"))
        except BrokerUnavailable as error:
            return Unknown(str(error), error)
        return ACCEPTED


class MemorySource:
    """Receives from a MemoryBroker; only one source of a group is active at a time."""

    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self._broker = broker
        self._group = broker._group(group)
        self._next = 0
        self._unacknowledged: dict[int, Delivery] = {}
        self._closed = False
        broker._sources.add(self)

    def __repr__(self) -> str:
        return f"<MemorySource of group {self._group.name!r}>"

    async def open(self) -> None:
        self._broker._check_reachable()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self._lose()
        self._broker._wake()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        found = self._take(limit)
        if not found:
            await self._broker._wait_for_change()
            found = self._take(limit)
        return found

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if not delivery.lost:
            self._broker._check_reachable()
            self._group.acknowledged.add(delivery.message)
            self._unacknowledged.pop(delivery.message, None)
            self._broker._wake()

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        if not delivery.lost:
            self._broker._check_reachable()
            message = self._broker.messages[delivery.message]
            self._broker.dead_letters.append(MemoryDeadLetter(self._group.name, message, reason))
            await self.acknowledge(delivery)

    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        self._broker._check_reachable()
        self._group.crash_counts[delivery.message] += by
        delivery.crash_count = self._group.crash_counts[delivery.message]

    def _lose(self) -> None:
        """Give up all deliveries; this source or another one gets them again."""
        for delivery in self._unacknowledged.values():
            delivery.lost = True
            if not delivery.suspect:
                self._group.suspects.discard(delivery.message)
        self._unacknowledged.clear()
        if self._group.active is not None and self._group.active() is self:
            self._group.active = None

    def _take(self, limit: int) -> list[Delivery]:
        self._broker._check_reachable()
        if self._closed:
            raise BrokerUnavailable(f"{self!r} was closed")
        found: list[Delivery] = []
        while self._is_active() and len(found) < limit and self._next < len(self._broker.messages):
            if self._next not in self._group.acknowledged:
                found.append(self._deliver(self._next))
            self._next += 1
        return found

    def _is_active(self) -> bool:
        active = self._group.active and self._group.active()
        if active is None:
            self._group.active, self._next, active = ref(self), 0, self
        return active is self

    def _deliver(self, number: int) -> Delivery:
        suspect = number in self._group.suspects
        self._group.suspects.add(number)
        crash_count = self._group.crash_counts[number]
        delivery = Delivery(None, suspect=suspect, crash_count=crash_count, message=number)
        message = self._broker.messages[number]
        try:
            delivery.envelope = from_attributes(message.attributes, message.data)
        except (DecodeError, InvalidEvent) as error:
            delivery.problem = str(error)
        self._unacknowledged[number] = delivery
        return delivery

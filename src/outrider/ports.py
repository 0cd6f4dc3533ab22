"""Ports: what a publisher, a source, a handler and a store must do; suites test each promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime, timedelta
    from uuid import UUID

    from outrider.events.envelope import EventEnvelope
    from outrider.lanes import LaneLease
    from outrider.outcomes import ClaimedEvent, RefusedEvent

DEFAULT_SINK: Final = "default"


@runtime_checkable
class EventPublisher(Protocol):
    """Sends to a sink.

    Both methods return when the sink has everything, and raise PublishFailed otherwise, with one
    outcome per event. For every aggregate the accepted events are a prefix of those handed over.
    `str()` says where it sends to, without secrets. It may have two more methods: `open` connects
    ahead of the first event, and raises BrokerUnavailable if waiting may help, ConfigurationError
    if that can never work; `close` is safe to call twice.
    """

    async def publish(self, envelope: EventEnvelope, /) -> None: ...
    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None: ...


@dataclass(frozen=True)
class CheckResult:
    """One thing that was checked. A fault stops delivery; a warning may lose or delay events."""

    subject: str
    verdict: Literal["fine", "warning", "fault"]
    text: str
    cure: str = ""


@runtime_checkable
class DurabilityCheck(Protocol):
    """A publisher that checks whether its broker has what it needs, and keeps what it has
    acknowledged. It connects for this by itself, and creates nothing."""

    async def check_durability(self) -> list[CheckResult]: ...


@runtime_checkable
class EventHandler(Protocol):
    """Reacts to events; may be called more than once with the same one."""

    @property
    def name(self) -> str: ...
    async def handle(self, envelope: EventEnvelope, /) -> None: ...


@runtime_checkable
class EventSubscriber(Protocol):
    """Calls handlers with events, in the order in which the handlers were registered.

    A type may be a pattern: `order.*` stands for all that begin so, `*` for every type.
    """

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None: ...
    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None: ...


@dataclass(eq=False, slots=True)
class Delivery:
    """A message that a consumer has received and not acknowledged yet."""

    envelope: EventEnvelope | None
    """None if the message is no event; `problem` says why."""
    problem: str | None = None
    suspect: bool = False
    """Whether a process may have died of this message; the consumer then handles it alone."""
    crash_count: int = 0
    """Crashes counted against this message; `adjust_crash_count` sets it."""
    message: Any = None
    """The client library's own object; only the source reads it."""
    lost: bool = False
    """Set by the source when the broker will deliver the message again; nothing more is done."""


@runtime_checkable
class EventSource(Protocol):
    """Receives from a broker: at least once, and in order per aggregate.

    What is not acknowledged is delivered again, the oldest first, after `close`, a lost connection
    or a crash, and after a crash as a suspect. `receive` waits a while for up to `limit` messages,
    and may return none. `dead_letter` copies the message to the dead letters and acknowledges it
    then. Both ignore a lost delivery. `adjust_crash_count` returns when the broker has stored the
    new `crash_count`; -1 takes a crash back, even of a lost delivery. All raise BrokerUnavailable
    if waiting may help. `open` and `close` are those of a publisher.
    """

    async def open(self) -> None: ...
    async def receive(self, limit: int, /) -> Sequence[Delivery]: ...
    async def acknowledge(self, delivery: Delivery, /) -> None: ...
    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None: ...
    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class ProcessedEventStore(Protocol):
    """Remembers which handler has processed which event."""

    async def contains(self, event_id: UUID, handler_name: str, /) -> bool: ...
    async def mark(self, event_id: UUID, handler_name: str, /) -> None: ...
    async def delete_before(self, moment: datetime, /) -> int: ...


@runtime_checkable
class Inbox(Protocol):
    """Lets a handler take effect once.

    Entering tells whether this handler must process the event now; leaving without an error marks
    it as processed. A transactional inbox does both in the handler's own transaction.
    """

    def once(
        self, envelope: EventEnvelope, handler_name: str, /
    ) -> AbstractAsyncContextManager[bool]: ...


class OutboxStore(Protocol):
    """Keeps events and hands them out by lanes.

    Every change names the fencing tokens of its lanes, and changes nothing where one is stale. A
    batch holds the oldest pending event of each aggregate it touches.
    """

    sink: str

    async def open(self, wake: Callable[[str], None], /) -> str:
        """Connect and check the schema; returns a description of the database without secrets.

        From now on `wake` is called when there may be work: with `encode_lanes` if the lanes are
        known, with `LANES_FREE` if a relay has released lanes, with any other text if unknown.
        """

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        """Pending events of these lanes, with the oldest of every aggregate among them.

        At most `limit`; if they are fewer than that and than LEAST_PER_LANE, there are no more.
        """

    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        unknown: Sequence[ClaimedEvent],
        /,
    ) -> int:
        """Write outcomes; returns how many rows changed, fewer than asked if a lane was lost.

        Unknown ones stay as they are, and will be claimed again.
        """

    async def adjust_crash_count(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        """Count a crash against these events in advance; -1 takes it back, as none happened."""

    async def close(self) -> None: ...


class LaneLeases(Protocol):
    """Shares the lanes out among relays, on the database's clock alone."""

    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        """Renew all lanes of this relay, and take free ones up to its fair share."""

    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        """Release lanes so that others get them at once; None releases all and signs off."""


class OutboxMaintenance(Protocol):
    """Counts and deletes."""

    async def count_pending(self, most: int, /) -> int:
        """How many events are pending, counted up to `most`."""

    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        """Delete the oldest published events of at least that age, `limit` of them at most."""


class RelayStore(OutboxStore, LaneLeases, OutboxMaintenance, Protocol):
    """All that a relay needs of a database; each part of the relay uses one of the three."""

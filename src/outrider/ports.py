"""What a store, a publisher, a handler must do; each promise has a conformance test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec

from outrider.errors import BrokerUnavailable, PublishFailed, PublishRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime, timedelta
    from uuid import UUID

    from outrider.envelope import EventEnvelope


@dataclass(frozen=True)
class Accepted:
    """The sink has the event; only a positive acknowledgement says so."""


@dataclass(frozen=True)
class Refused:
    """The sink said no to this event; it costs an attempt."""

    reason: str
    error: Exception | None = None


@dataclass(frozen=True)
class Unknown:
    """Nobody can tell: time-out, lost connection, or held back behind a refused one. It repeats."""

    reason: str
    error: Exception | None = None


Outcome = Accepted | Refused | Unknown
ACCEPTED: Final = Accepted()
HELD_BACK: Final = Unknown("held back: an earlier event of its aggregate was not accepted")


def raise_unless_accepted(outcomes: Sequence[Outcome]) -> None:
    """The one way in which a publisher reports that not all went well."""
    errors = [error for outcome in outcomes if (error := _error_of(outcome))]
    if errors:
        failed = PublishFailed(f"{len(errors)} of {len(outcomes)} events not accepted", errors)
        failed.outcomes = tuple(outcomes)
        raise failed


def _error_of(outcome: Outcome) -> Exception | None:
    match outcome:
        case Accepted():
            return None
        case Refused(reason, error):
            return error or PublishRefused(reason)
        case Unknown(reason, error):
            return error or BrokerUnavailable(reason)


@runtime_checkable
class EventPublisher(Protocol):
    """Sends to a sink.

    Both methods return when the sink has everything, and raise PublishFailed otherwise, with one
    outcome per event. For every aggregate the accepted events are a prefix of those handed over.
    `open` connects ahead of the first event, and raises ConfigurationError if that can never work;
    `close` is safe to call twice. Printed, a publisher says where it sends to, without secrets.
    """

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def publish(self, envelope: EventEnvelope, /) -> None: ...
    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None: ...


@runtime_checkable
class EventHandler(Protocol):
    """Reacts to events; may be called more than once with the same one."""

    @property
    def name(self) -> str: ...
    async def handle(self, envelope: EventEnvelope, /) -> None: ...


@runtime_checkable
class EventSubscriber(Protocol):
    """Brings events to handlers, which are called in the order of their registration.

    A type may be a pattern: `order.*` stands for all that begin so, `*` for every type.
    """

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None: ...
    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None: ...


@dataclass(eq=False, slots=True)
class Delivery:
    """A message in a consumer's hands."""

    envelope: EventEnvelope | None
    """None if the message is no event; `problem` says why."""
    problem: str | None = None
    deliveries: int = 1
    """How often the broker has handed it out, as far as it counts."""
    message: Any = None
    """The source's own."""
    lost: bool = False
    """The broker hands it to somebody again; the source sets this, and nothing more is done."""


@runtime_checkable
class EventSource(Protocol):
    """Receives from a broker: at least once, and in order per aggregate.

    What is not acknowledged comes again, the oldest first, after `close`, a lost connection or a
    crash. `receive` waits a while for up to `limit` messages, and may return none; it raises
    BrokerUnavailable if waiting may help. `set_aside` puts the message where people find it, and
    acknowledges it then. Both raise BrokerUnavailable if that cannot be done now, and do nothing
    with a delivery that is lost. `open` and `close` are those of a publisher.
    """

    async def open(self) -> None: ...
    async def receive(self, limit: int, /) -> Sequence[Delivery]: ...
    async def acknowledge(self, delivery: Delivery, /) -> None: ...
    async def set_aside(self, delivery: Delivery, reason: str, /) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class ProcessedEventStore(Protocol):
    """Remembers which handler has dealt with which event."""

    async def contains(self, event_id: UUID, handler_name: str, /) -> bool: ...
    async def mark(self, event_id: UUID, handler_name: str, /) -> None: ...
    async def delete_before(self, moment: datetime, /) -> int: ...


@runtime_checkable
class Inbox(Protocol):
    """Lets a handler take effect once.

    Entering tells whether this handler is to deal with the event now; leaving without an error
    remembers that it has. A transactional one does both in the handler's own transaction.
    """

    def once(
        self, envelope: EventEnvelope, handler_name: str, /
    ) -> AbstractAsyncContextManager[bool]: ...


_LANES_NAMED: Final = 8
LANES_FREE: Final = "lanes"
"""The word on a wake-up that comes because a relay has released lanes."""
LEAST_PER_LANE: Final = 16
"""So many events of one lane a claim gives at least, if there are."""


def lanes_word(lanes: Collection[int]) -> str:
    """The word on a wake-up for events in these lanes; of many it says nothing."""
    return ",".join(map(str, lanes)) if len(lanes) <= _LANES_NAMED else ""


def lanes_of(word: str) -> frozenset[int] | None:
    """The lanes that a wake-up is about, None if it may be any. It is a hint: anybody may send."""
    numbers = word.split(",")
    if len(numbers) <= _LANES_NAMED and all(n.isdecimal() and len(n) < 6 for n in numbers):
        return frozenset(map(int, numbers))
    return None


class ClaimedEvent(msgspec.Struct, frozen=True, gc=False):
    """A pending row in a relay's hands, of which it makes thousands a second."""

    position: int
    lane: int
    envelope: EventEnvelope
    created_at: datetime
    retry_count: int
    crash_count: int
    max_retries: int | None
    aggregate_key: int
    problem: str | None = None
    """Why it cannot be published at all, if the row is damaged."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """What becomes of an event that was not accepted: another try after `wait`, or failed."""

    event: ClaimedEvent
    reason: str
    wait: timedelta | None


@dataclass(frozen=True, slots=True)
class Lease:
    """Lanes with the tokens under which they were leased."""

    lanes: Mapping[int, int]
    orphaned: frozenset[int] = frozenset()
    """Lanes just taken whose owner had died."""
    surplus: frozenset[int] = frozenset()
    """Lanes to release when nothing of theirs is in hand, for relays that have too few."""


class OutboxStore(Protocol):
    """Keeps events and shares them out by lanes, on the database's clock alone.

    Every change names the tokens of its lanes and changes nothing where one is stale. A batch
    holds the oldest pending event of each aggregate it touches.
    """

    sink: str

    async def open(self, wake: Callable[[str], None], /) -> str:
        """Connect and check the schema; says what is connected, without secrets.

        From now on `wake` is called when there may be work, with `lanes_word` if it is known
        where, `LANES_FREE` if it is lanes, anything else if it is unknown.
        """
        ...

    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> Lease:
        """Renew all lanes of this relay, and take free ones up to its fair share."""
        ...

    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        """Give lanes back so that others get them at once; None gives all and says goodbye."""
        ...

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        """Pending events of these lanes, with the oldest of every aggregate among them.

        At most `limit`; if they are fewer than that and than LEAST_PER_LANE, there are no more.
        """
        ...

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
        ...

    async def suspect(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        """Count a crash against these events in advance; -1 takes it back, as none happened."""
        ...

    async def left(self, most: int, /) -> int:
        """How many events are pending, counted up to `most`."""
        ...

    async def forget(self, older_than: timedelta, limit: int, /) -> int:
        """Delete the oldest published events of at least that age, `limit` of them at most."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliveredEvent:
    """An event with the number that it got when it was settled."""

    delivery: int
    envelope: EventEnvelope


class DeliveredEvents(Protocol):
    """What a sink has accepted, for readers that follow it with a cursor.

    A number can be seen only when every lower one can: who asks for what comes after the last
    one seen misses nothing and meets nothing twice, however late a transaction was committed.
    """

    sink: str

    async def open(self, wake: Callable[[str], None], /) -> str:
        """Connect; says what is connected, without secrets.

        From now on `wake` is called with a word on its source when there may be more.
        """
        ...

    async def after(self, delivery: int, limit: int, /) -> list[DeliveredEvent]:
        """The first of those with a higher number, in order."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """The oldest number that is kept and the newest that was given.

        If nothing is kept, the oldest is the one that will be given next.
        """
        ...

    async def close(self) -> None: ...


class BacklogOfSink(Protocol):
    """How much waits for one sink."""

    @property
    def pending(self) -> int: ...
    @property
    def retrying(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def oldest(self) -> timedelta | None: ...

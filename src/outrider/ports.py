"""What a publisher, a handler and a subscriber must do; each promise has a conformance test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from outrider.errors import BrokerUnavailable, PublishFailed, PublishRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

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
ACCEPTED = Accepted()


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
    """

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
    """Brings events to handlers, which are called in the order of their registration."""

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None: ...
    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None: ...

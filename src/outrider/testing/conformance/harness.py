"""What an adapter's author implements for the suites: one destination, or one consumer group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.testing.conformance.crash import crash
from outrider.testing.conformance.timing import outage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventPublisher, EventSource


@dataclass(frozen=True)
class StoredMessage:
    """A message as the sink keeps it, read without the adapter under test."""

    attributes: dict[str, str]
    """The CloudEvents attributes, `datacontenttype` among them, without prefix and decoded."""
    data: bytes
    official: Any
    """The CloudEvent that the official SDK reads from the same message."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that a source moved to the dead letters."""

    body: bytes
    reason: str


class _Harness(ABC):
    """A real server that a test may kill."""

    secrets: Sequence[str] = ()
    """Words that no printed adapter and no error may contain, such as the server's password."""

    @abstractmethod
    async def stop(self) -> None:
        """SIGKILL the server; return when it is gone."""

    @abstractmethod
    async def start(self) -> None:
        """Start it again on the same data; return when it answers. Harmless if it runs."""

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Within the block, nobody can connect. Override it if the server is slow to start."""
        async with outage(self):
            yield


class SinkHarness(_Harness):
    """One destination on a real server, for one test."""

    @abstractmethod
    def publisher(self) -> EventPublisher:
        """A new, unopened publisher to this destination; the suite closes it."""

    @abstractmethod
    async def stored(self) -> list[StoredMessage]:
        """All messages that the sink holds, in its order; the same ones on every call."""

    @abstractmethod
    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        """An event that this sink refuses because of the event itself: too large, not routable."""


class SourceHarness(_Harness):
    """One group or queue on a real server, for one test."""

    @abstractmethod
    def source(self) -> EventSource:
        """A new, unopened source of the same group; the suite closes it."""

    @abstractmethod
    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        """Put these into the broker, in this order, through the publisher of the same kind."""

    @abstractmethod
    async def send_garbage(self, body: bytes, /) -> None:
        """Put a message into the broker that is no event."""

    @abstractmethod
    async def dead_letters(self) -> list[DeadLetter]:
        """All dead letters; the same ones on every call."""

    async def crash(self, receive: int, acknowledge: int, adjust: Sequence[int] = (), /) -> None:
        """A consumer receives some messages, acknowledges the first ones, and is killed.

        Before, it adjusts the crash count of the first unacknowledged one by each of `adjust`. It
        runs in a process of its own; override it only if the broker is part of this process.
        """
        await crash(self.source, receive, acknowledge, adjust)

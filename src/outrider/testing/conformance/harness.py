"""What a suite needs to know about a broker: one destination or one group, on a real server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.testing.conformance.crash import crash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventPublisher, EventSource


@dataclass(frozen=True)
class StoredMessage:
    """A message as the sink keeps it, read by other means than the adapter's own."""

    attributes: dict[str, str]
    """The CloudEvents attributes, `datacontenttype` among them, without prefix and decoded."""
    data: bytes
    official: Any
    """The CloudEvent that the official SDK read from the very message."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that was set aside."""

    body: bytes
    reason: str


class SinkHarness(ABC):
    """One destination on a real server, for one test."""

    secrets: Sequence[str] = ()
    """Words that no printed publisher and no error may contain, such as the server's password."""

    @abstractmethod
    def publisher(self) -> EventPublisher:
        """A new, unopened publisher to this destination; the suite closes it."""

    @abstractmethod
    async def stored(self) -> list[StoredMessage]:
        """Everything the sink holds, in its order; each time it is asked, and after a restart."""

    @abstractmethod
    def refused_event(self, aggregate_id: str, /) -> EventEnvelope:
        """An event that this sink refuses for its own fault: too large, not routable."""

    @abstractmethod
    async def stop(self) -> None:
        """SIGKILL the server; return when it is gone."""

    @abstractmethod
    async def start(self) -> None:
        """Start it again on the same data; return when it answers. Harmless if it runs."""


class SourceHarness(ABC):
    """One group or queue on a real server, for one test."""

    secrets: Sequence[str] = ()
    """Words that no printed source and no error may contain."""

    @abstractmethod
    def source(self) -> EventSource:
        """A new, unopened source of the same group; the suite closes it."""

    @abstractmethod
    async def send(self, envelopes: Sequence[EventEnvelope], /) -> None:
        """Put these into the broker, in this order, through the publisher of the same kind."""

    @abstractmethod
    async def send_garbage(self, body: bytes, /) -> None:
        """Put a message there that is no event of ours."""

    @abstractmethod
    async def dead_letters(self) -> list[DeadLetter]:
        """Everything that was set aside, each time it is asked."""

    @abstractmethod
    async def stop(self) -> None:
        """SIGKILL the server; return when it is gone."""

    @abstractmethod
    async def start(self) -> None:
        """Start it again on the same data; return when it answers. Harmless if it runs."""

    async def crash(self, receive: int, acknowledge: int, /) -> None:
        """A consumer receives so many, acknowledges the first of them, and dies without a word.

        Here it is a process that is killed; override it only if the broker lives in this one.
        """
        await crash(self.source, receive, acknowledge)

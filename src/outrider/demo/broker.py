"""The broker of the demo: in memory, published to over HTTP by the relay process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.demo.loopback import request_json
from outrider.errors import BrokerUnavailable, PublishFailed
from outrider.events.envelope import EventEnvelope
from outrider.lifecycle import Openable
from outrider.outcomes import ACCEPTED, HELD_BACK, Outcome, Refused, raise_unless_accepted
from outrider.testing.memory_broker import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.ports import EventSource

POISON: Final = "poison."
"""The prefix of event types that have no queue until `bind` is called."""


class LocalBroker:
    """A MemoryBroker behind a URL of the demo's web server."""

    name = "in memory"

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/broker"
        self._memory = MemoryBroker(refuse=self._refuse)
        self._bound: set[str] = set()

    def _refuse(self, envelope: EventEnvelope) -> str | None:
        has_queue = not envelope.event_type.startswith(POISON) or envelope.event_type in self._bound
        return None if has_queue else "no queue takes it"

    def sources(self) -> list[EventSource]:
        return [self._memory.source("processing")]

    async def stop(self) -> None:
        self._memory.stop()

    async def start(self) -> None:
        self._memory.start()

    async def bind(self, event_type: str) -> None:
        self._bound.add(event_type)

    async def publish_all(self, batch: list[str]) -> list[str | None]:
        """Publish events; returns the reason of each refusal, None for an accepted event."""
        publisher = self._memory.publisher()
        await publisher.open()
        try:
            await publisher.publish_all([EventEnvelope.from_json(text) for text in batch])
        except PublishFailed as failed:
            return [getattr(outcome, "reason", None) for outcome in failed.outcomes]
        return [None] * len(batch)


class HttpPublisher(Openable):
    """Publishes to a LocalBroker over HTTP, from the relay process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __str__(self) -> str:
        return f"demo broker at {self._url}"

    async def open(self) -> None:
        """Nothing to open: each request has its own connection."""

    async def close(self) -> None:
        """Nothing to close."""

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch = [envelope.to_json().decode() for envelope in envelopes]
        try:
            refusals = await request_json("POST", self._url, batch)
        except ConnectionError as error:
            raise BrokerUnavailable(str(error)) from None
        raise_unless_accepted([_outcome(reason) for reason in refusals])


def _outcome(reason: str | None) -> Outcome:
    match reason:
        case None:
            return ACCEPTED
        case HELD_BACK.reason:
            return HELD_BACK
        case _:
            return Refused(reason)

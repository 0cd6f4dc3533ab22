"""The broker of the demo: in memory, reached by HTTP from the relay's process, and breakable."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outrider.envelope import EventEnvelope
from outrider.errors import BrokerUnavailable, PublishFailed
from outrider.ports import ACCEPTED, HELD_BACK, Outcome, Refused, raise_unless_accepted
from outrider.testing.memory_broker import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class DemoBroker:
    """Keeps what it gets; `broken` answers nobody, `crash_relay` is called after the next batch."""

    def __init__(self) -> None:
        self.memory = MemoryBroker(refuse=self._refuse)
        self.broken = False
        self.repaired = False
        self.crash_relay: Callable[[], None] | None = None

    def _refuse(self, envelope: EventEnvelope) -> str | None:
        if envelope.payload.get("poisoned") and not self.repaired:
            return "poisoned: no consumer could read it"
        return None

    async def take(self, batch: list[str]) -> list[str | None]:
        """Why each event was refused, None if it was accepted."""
        envelopes = [EventEnvelope.from_json(text) for text in batch]
        outcomes: Sequence[object] = [ACCEPTED] * len(batch)
        try:
            await self.memory.publisher().publish_all(envelopes)
        except PublishFailed as failed:
            outcomes = failed.outcomes
        refusals = [getattr(outcome, "reason", None) for outcome in outcomes]
        crash, self.crash_relay = self.crash_relay, None
        if crash is not None:
            crash()  # after publishing, before the relay hears of it: it cannot settle
        return refusals


class HttpPublisher:
    """The relay's side of it."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    def __str__(self) -> str:
        return f"demo broker at {self._url.netloc}"

    async def open(self) -> None:
        """Nothing is kept open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch = [envelope.to_json().decode() for envelope in envelopes]
        refusals = await asyncio.to_thread(self._post, json.dumps(batch))
        raise_unless_accepted([_outcome(reason) for reason in refusals])

    def _post(self, body: str) -> list[Any]:
        link = http.client.HTTPConnection(self._url.netloc, timeout=5)
        try:
            link.request("POST", self._url.path, body)
            answer = link.getresponse()
            if answer.status != 200:
                raise BrokerUnavailable(f"{self} answers {answer.status}")
            found: list[Any] = json.loads(answer.read())
            return found
        except (OSError, http.client.HTTPException) as error:
            raise BrokerUnavailable(f"{self}: {type(error).__name__}") from None
        finally:
            link.close()


def _outcome(reason: str | None) -> Outcome:
    match reason:
        case None:
            return ACCEPTED
        case HELD_BACK.reason:
            return HELD_BACK
        case _:
            return Refused(reason)

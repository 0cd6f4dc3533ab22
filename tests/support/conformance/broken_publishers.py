"""Publishers that break one promise each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider import BrokerUnavailable, ConfigurationError, EventEnvelope, EventMetadata
from outrider.brokers import PublishFailed
from outrider.outcomes import ACCEPTED, HELD_BACK, Outcome, Refused, Unknown, raise_unless_accepted
from outrider.testing.conformance.timing import REFUSAL_CEILING_S
from outrider.testing.memory_broker import MemoryBroker, MemoryPublisher


class Broken(MemoryPublisher):
    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._buffer: list[EventEnvelope] = []
        self._outcomes: list[Outcome] = []
        self._harmed = False


class ConfirmsTooEarly(Broken):
    """Sends with the next call, or when it is closed."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        ready, self._buffer = self._buffer, list(envelopes)
        await super().publish_all(ready)

    async def close(self) -> None:
        if not self._closed:
            await self.publish_all([])
        await super().close()


class Reorders(Broken):
    """Has two events of an aggregate in flight, and the second arrives first."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        await super().publish_all(envelopes[::-1])


class SwallowsRefusals(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        outcome = await super()._send(envelope)
        return ACCEPTED if isinstance(outcome, Refused) else outcome


class GoesOnAfterARefusal(Broken):
    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        raise_unless_accepted([await self._send(envelope) for envelope in envelopes])


class GoesOnInSecret(Broken):
    """Holds back in its report only what follows a refusal."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        try:
            await super().publish_all(envelopes)
        except PublishFailed as failed:
            for envelope, outcome in zip(envelopes, failed.outcomes, strict=True):
                if outcome is HELD_BACK:
                    await self._send(envelope)
            raise


class WaitsAfterARefusal(Broken):
    """Holds back what follows, and only its timeout ends the call."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        try:
            await super().publish_all(envelopes)
        except PublishFailed as failed:
            if HELD_BACK in failed.outcomes:
                await asyncio.sleep(2 * REFUSAL_CEILING_S)
            raise


class AcceptsInAnOutage(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        outcome = await super()._send(envelope)
        return ACCEPTED if isinstance(outcome, Unknown) else outcome


class RefusesInAnOutage(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        outcome = await super()._send(envelope)
        return Refused("no connection") if isinstance(outcome, Unknown) else outcome


class TakesAnOutageForAMistake(Broken):
    async def open(self) -> None:
        try:
            await super().open()
        except BrokerUnavailable as error:
            raise ConfigurationError("bad address") from error


class StaysDown(Broken):
    """Notices that the connection is lost, and makes no new one."""

    async def _send(self, envelope: EventEnvelope) -> Outcome:
        outcome = Unknown("not connected") if self._harmed else await super()._send(envelope)
        self._harmed |= isinstance(outcome, Unknown)
        return outcome


class LosesHeaders(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        return await super()._send(envelope.with_metadata(EventMetadata()))


class ManglesText(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        data = envelope.data.decode().encode("ascii", "replace")
        return await super()._send(envelope.with_metadata(envelope.metadata, data))


class MixesUpCalls(Broken):
    """Keeps in the object what belongs to the call."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        self._outcomes = []
        for envelope in envelopes:
            self._outcomes.append(await self._send(envelope))
        raise_unless_accepted(self._outcomes)


class BreaksAfterCancel(Broken):
    """A cancelled call keeps its lock."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._lock = asyncio.Lock()

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        await self._lock.acquire()
        try:
            await super().publish_all(envelopes)
        except Exception:
            self._lock.release()
            raise
        self._lock.release()


class SwallowsCancellation(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        try:
            return await super()._send(envelope)
        except asyncio.CancelledError:
            return Unknown("cancelled")


class ClosesOnce(Broken):
    async def close(self) -> None:
        if self._closed:
            raise RuntimeError("already closed")
        await super().close()


class PrintsItsPassword(Broken):
    def __repr__(self) -> str:
        return "<Broken amqp://user:password@host/>"


class PrintsPayloads(Broken):
    async def _send(self, envelope: EventEnvelope) -> Outcome:
        outcome = await super()._send(envelope)
        return Unknown(f"not sent: {envelope.payload}") if outcome is not ACCEPTED else outcome

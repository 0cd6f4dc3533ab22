"""Sources that break one promise each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider import BrokerUnavailable, EventMetadata
from outrider.events.cloudevents import from_attributes
from outrider.ports import Delivery
from outrider.testing.memory_broker import MemorySource


class LosesHeaders(MemorySource):
    def _deliver(self, number: int) -> Delivery:
        delivery = super()._deliver(number)
        if delivery.envelope:
            delivery.envelope = delivery.envelope.with_metadata(EventMetadata())
        return delivery


class WaitsForEver(MemorySource):
    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        while not (found := await super().receive(limit)):
            pass
        return found


class AcknowledgesNothing(MemorySource):
    async def acknowledge(self, delivery: Delivery, /) -> None:
        """It is only noted here."""


class AcknowledgesUnasked(MemorySource):
    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        found = await super().receive(limit)
        for delivery in found:
            await self.acknowledge(delivery)
        return found


class ForgetsOnClose(MemorySource):
    """What it holds is gone with it."""

    async def close(self) -> None:
        self._group.acknowledged.update(self._unacknowledged)
        await super().close()


class NewestFirst(MemorySource):
    def _take(self, limit: int) -> list[Delivery]:
        return super()._take(limit)[::-1]


class DropsGarbage(MemorySource):
    def _take(self, limit: int) -> list[Delivery]:
        found = super()._take(limit)
        self._group.acknowledged.update(each.message for each in found if each.envelope is None)
        return [delivery for delivery in found if delivery.envelope is not None]


class QuotesGarbage(MemorySource):
    def _deliver(self, number: int) -> Delivery:
        delivery = super()._deliver(number)
        if delivery.problem:
            delivery.problem += f": {self._broker.messages[number].data!r}"
        return delivery


class BreaksOnInvalidEvents(MemorySource):
    def _deliver(self, number: int) -> Delivery:
        message = self._broker.messages[number]
        if "specversion" in message.attributes:
            from_attributes(message.attributes, message.data)
        return super()._deliver(number)


class NoDeadLetter(MemorySource):
    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        await self.acknowledge(delivery)


class DeadLettersAndKeeps(MemorySource):
    """Writes the dead letter, and the original comes again."""

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        await super().dead_letter(delivery, reason)
        self._group.acknowledged.discard(delivery.message)


class DoesNotStandBy(MemorySource):
    """Each one receives all that is not acknowledged."""

    def _is_active(self) -> bool:
        return True


class DeadStayActive(MemorySource):
    """Nobody notices that the active source died."""

    dead: list[MemorySource] = []

    async def open(self) -> None:
        self.dead.append(self)
        await super().open()


class SuspectsNothing(MemorySource):
    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        found = await super().receive(limit)
        for delivery in found:
            delivery.suspect = False
        return found


class ForgetsCrashes(MemorySource):
    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        delivery.crash_count += by


class AcknowledgesUpTo(MemorySource):
    """Takes an acknowledgement for that of all before it."""

    async def acknowledge(self, delivery: Delivery, /) -> None:
        await super().acknowledge(delivery)
        self._group.acknowledged.update(range(delivery.message))


class IgnoresTheLimit(MemorySource):
    def _take(self, limit: int) -> list[Delivery]:
        return super()._take(limit + 1)


class LosesWhenCancelled(MemorySource):
    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        found = await super().receive(limit)
        await asyncio.sleep(0)
        return found


class NumbersDeliveriesAnew(MemorySource):
    """After an outage an old acknowledgement hits another message, as with RabbitMQ's tags."""

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if delivery.lost:
            self._group.acknowledged.add(delivery.message + 1)
        await super().acknowledge(delivery)


class StaysDown(MemorySource):
    """Notices that the connection is lost, and makes no new one."""

    def _take(self, limit: int) -> list[Delivery]:
        try:
            return super()._take(limit)
        except BrokerUnavailable:
            self._closed = True
            raise


class ClosesOnce(MemorySource):
    async def close(self) -> None:
        if self._closed:
            raise RuntimeError("already closed")
        await super().close()


class PrintsItsPassword(MemorySource):
    def __repr__(self) -> str:
        return "<Broken amqp://user:password@host/>"

"""Drives Outrider, as its peers are driven."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import driver
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outrider import (
    DomainEvent,
    EventEnvelope,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
)
from outrider.brokers import ACCEPTED, HELD_BACK, Outcome, Refused, raise_unless_accepted
from outrider.brokers.rabbitmq import RabbitMQPublisher


class ToSink:
    """Nowhere or RabbitMQ; what shall fail is refused, and holds back what follows it."""

    def __init__(self, sink: driver.Sink, broker: RabbitMQPublisher | None) -> None:
        self._sink, self._broker = sink, broker

    async def open(self) -> None:
        if self._broker:
            await self._broker.open()

    async def close(self) -> None:
        if self._broker:
            await self._broker.close()

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        outcomes = self._outcomes(envelopes)
        fine = [e for e, o in zip(envelopes, outcomes, strict=True) if o is ACCEPTED]
        if self._broker and fine:
            await self._broker.publish_all(fine)
        self._sink.count(len(fine))
        raise_unless_accepted(outcomes)

    def _outcomes(self, envelopes: Sequence[EventEnvelope]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        for envelope in envelopes:
            outcome: Outcome = HELD_BACK
            if envelope.aggregate_id not in stopped:
                outcome = self._outcome(envelope)
            if outcome is not ACCEPTED:
                stopped.add(envelope.aggregate_id)
            outcomes.append(outcome)
        return outcomes

    def _outcome(self, envelope: EventEnvelope) -> Outcome:
        try:
            self._sink.fail_once(envelope.data)
        except driver.TransientFailure:
            return Refused("away for a moment")
        return ACCEPTED


async def fill(task: driver.Task) -> None:
    engine, outbox = create_async_engine(_url(task)), Outbox()
    await create_all(engine)
    events = [DomainEvent(driver.EVENT_TYPE, "order", k, body) for k, body in task.events()]
    for at in range(0, len(events), 1000):
        async with AsyncSession(engine) as session, session.begin():
            outbox.record(session, *events[at : at + 1000])
    await engine.dispose()


@asynccontextmanager
async def working(task: driver.Task, sink: driver.Sink) -> AsyncIterator[None]:
    engine = create_async_engine(_url(task))
    broker = RabbitMQPublisher(task.amqp, exchange=task.exchange) if task.amqp else None
    config = RelayConfig(batch_size=1000) if task.tuned else RelayConfig()
    async with OutboxRelay(SqlOutboxStore(engine), ToSink(sink, broker), config):
        yield
    await engine.dispose()


def _url(task: driver.Task) -> str:
    return task.postgres.replace("postgresql", "postgresql+asyncpg", 1)


driver.run(fill, working, "SELECT FROM outbox WHERE status = 'pending'")

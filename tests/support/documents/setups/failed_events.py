"""Makes shop.db, an outbox with one failed and one published event."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from outrider import (
    EventEnvelope,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
    open_engine,
)
from outrider.brokers import ACCEPTED, Refused, raise_unless_accepted
from outrider.observability import BatchPublished, EventFailed

FAILED, PUBLISHED = (UUID(f"0195d0a2-0000-7000-8000-00000000000{n}") for n in (1, 2))


class RefusesOne:
    async def open(self): ...
    async def close(self): ...

    async def publish(self, envelope, /):
        await self.publish_all([envelope])

    async def publish_all(self, envelopes, /):
        raise_unless_accepted(
            [Refused("NO_ROUTE") if e.event_id == FAILED else ACCEPTED for e in envelopes]
        )


def order_placed(event_id: UUID) -> EventEnvelope:
    return EventEnvelope(
        event_id=event_id,
        event_type="order.placed",
        aggregate_type="order",
        aggregate_id=str(event_id.int % 10),
        occurred_at=datetime.now(UTC),
        data=b'{"total": "49.90"}',
    )


async def main() -> None:
    engine = open_engine("sqlite:///shop.db")
    await create_all(engine)
    async with AsyncSession(engine) as session, session.begin():
        Outbox().record(session, order_placed(FAILED), order_placed(PUBLISHED))
    failed, published = asyncio.Event(), asyncio.Event()

    def watch(signal) -> None:
        if isinstance(signal, EventFailed):
            failed.set()
        if isinstance(signal, BatchPublished) and signal.accepted:
            published.set()

    config = RelayConfig(max_retries=1)
    async with OutboxRelay(SqlOutboxStore(engine), RefusesOne(), config, on_signal=watch):
        await failed.wait()
        await published.wait()
    await engine.dispose()


asyncio.run(main())

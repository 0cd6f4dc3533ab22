"""Drives omni-box: its outbox publisher in the loop of its README, our broker adapter."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import driver
import structlog
from omni_box import OmniBoxDomainService, OutboxPublisher
from omni_box.core.exceptions import TransientError
from omni_box.core.models.entities import OutboxEvent
from omni_box.core.protocols.publishers import EventPublisher
from omni_box.infra.storage.postgres import PostgresOutboxRepository
from omni_box.infra.storage.postgres.orm import OutboxEventDBBase
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase

# Written one transaction after the other they would have times of their own.
SPREAD = """
UPDATE outbox_events SET created_at = created_at
    + (payload->>'number')::int * interval '1 microsecond'
"""


class Base(DeclarativeBase):
    pass


class OutboxEventDB(OutboxEventDBBase, Base):
    pass


class ToSink(EventPublisher):
    def __init__(self, sink: driver.Sink) -> None:
        self._sink = sink

    async def publish(self, event: OutboxEvent, repo: Any) -> None:  # noqa: ARG002 - as the library calls it
        try:
            await self._sink.send(event.payload)
        except driver.TransientFailure as error:
            raise TransientError("away for a moment") from error


def engine_of(task: driver.Task) -> AsyncEngine:
    return create_async_engine(task.postgres.replace("postgresql", "postgresql+asyncpg", 1))


async def fill(task: driver.Task) -> None:
    engine, domain = engine_of(task), OmniBoxDomainService()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    events = [
        domain.create_outbox_event(
            aggregate_type="order",
            aggregate_id=uuid.uuid5(uuid.NAMESPACE_OID, key),
            event_type=driver.EVENT_TYPE,
            topic="orders",
            partition_key=key,
            payload=body,
        )
        for key, body in task.events()
    ]
    async with AsyncSession(engine) as session, session.begin():
        await PostgresOutboxRepository(session, model_class=OutboxEventDB).bulk_create(events)
        await session.execute(text(SPREAD))
    await engine.dispose()


@asynccontextmanager
async def working(task: driver.Task, sink: driver.Sink) -> AsyncIterator[None]:
    engine, broker = engine_of(task), ToSink(sink)
    size = 1000 if task.tuned else 100
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

    async def publish() -> None:
        while True:
            async with AsyncSession(engine) as session, session.begin():
                repo = PostgresOutboxRepository(session, model_class=OutboxEventDB)
                result = await OutboxPublisher(repo, broker).publish_batch(
                    worker_id="publisher-1", batch_size=size
                )
            if not result.processed_event_ids:
                await asyncio.sleep(0.05 if task.tuned else 1.0)

    async with driver.in_background(publish()):
        yield
    await engine.dispose()


driver.run(fill, working, "SELECT FROM outbox_events WHERE status = 'pending'")

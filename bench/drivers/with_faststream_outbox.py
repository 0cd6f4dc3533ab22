"""Drives faststream-outbox: its relay by a stacked decorator to FastStream's RabbitMQ broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import driver
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

METADATA = MetaData()
TABLE = make_outbox_table(METADATA)
QUEUE = "orders"
TUNED = {"max_workers": 8, "fetch_batch_size": 500, "terminal_flush_batch_size": 100}


def engine_of(task: driver.Task) -> AsyncEngine:
    url = task.postgres.replace("postgresql", "postgresql+asyncpg", 1)
    return create_async_engine(url, pool_size=20)


async def fill(task: driver.Task) -> None:
    engine = engine_of(task)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    broker = OutboxBroker(engine, outbox_table=TABLE)
    bodies = [body for _, body in task.events()]
    async with broker:
        for at in range(0, task.count, 1000):
            async with AsyncSession(engine) as session, session.begin():
                await broker.publish_batch(*bodies[at : at + 1000], queue=QUEUE, session=session)
    await engine.dispose()


@asynccontextmanager
async def working(task: driver.Task, sink: driver.Sink) -> AsyncIterator[None]:
    engine = engine_of(task)
    broker = OutboxBroker(engine, outbox_table=TABLE, logger=None)

    async def relay(body: dict[str, Any]) -> dict[str, Any]:
        sink.fail_once(body)
        sink.count()
        return body

    handler = broker.subscriber(QUEUE, **(TUNED if task.tuned else {}))(relay)
    rabbit = RabbitBroker(task.amqp, logger=None) if task.amqp else None
    if rabbit is not None:
        exchange = RabbitExchange(task.exchange, type=ExchangeType.TOPIC, durable=True)
        to = rabbit.publisher(routing_key=driver.EVENT_TYPE, exchange=exchange, persist=True)
        handler = to(handler)
        await rabbit.start()
    async with broker:
        yield
    if rabbit is not None:
        await rabbit.stop()
    await engine.dispose()


driver.run(fill, working, "SELECT FROM outbox")

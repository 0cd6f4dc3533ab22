"""Drives txoutbox: its relay, its PostgreSQL storage, our function to publish."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import driver
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

TUNED = RelayConfig(batch_size=1000, concurrency=200, lease=timedelta(seconds=120))


async def fill(task: driver.Task) -> None:
    async with asyncpg.create_pool(task.postgres, min_size=1, max_size=1) as pool:
        await PostgresStorage(pool).create_schema()
        await pool.executemany(
            "INSERT INTO outbox (topic, key, payload) VALUES ($1, $2, $3)",
            [(driver.EVENT_TYPE, key, json.dumps(body).encode()) for key, body in task.events()],
        )


@asynccontextmanager
async def working(task: driver.Task, sink: driver.Sink) -> AsyncIterator[None]:
    async def publish(message: OutboxMessage) -> None:
        await sink.send(message.payload)

    async with (
        asyncpg.create_pool(task.postgres) as pool,
        Relay(PostgresStorage(pool), publish, config=TUNED if task.tuned else None),
    ):
        yield


driver.run(fill, working, "SELECT FROM outbox WHERE status = 'pending'")

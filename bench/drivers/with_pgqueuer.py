"""Drives pgqueuer: each event is a job that publishes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import driver
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.executors import DatabaseRetryEntrypointExecutor
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def fill(task: driver.Task) -> None:
    connection = await asyncpg.connect(task.postgres)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    bodies: list[bytes | None] = [json.dumps(body).encode() for _, body in task.events()]
    await queries.enqueue(["publish"] * task.count, bodies, [0] * task.count)
    await connection.close()


@asynccontextmanager
async def working(task: driver.Task, sink: driver.Sink) -> AsyncIterator[None]:
    connection = await asyncpg.connect(task.postgres)
    queuer = PgQueuer(AsyncpgDriver(connection))
    retrying: dict[str, Any] = {"executor_factory": partial(DatabaseRetryEntrypointExecutor)}

    @queuer.entrypoint("publish", **(retrying if task.tuned else {}))
    async def publish(job: Job) -> None:
        assert job.payload is not None
        await sink.send(job.payload)

    running = queuer.run(batch_size=500) if task.tuned else queuer.run()
    async with driver.in_background(running):
        yield
        queuer.shutdown.set()
    await connection.close()


driver.run(fill, working, "SELECT FROM pgqueuer WHERE status IN ('queued', 'picked')")

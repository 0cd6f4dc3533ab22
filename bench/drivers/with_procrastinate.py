"""Drives procrastinate: each event is a job that publishes it, with its aggregate as the lock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import driver
import procrastinate

CONCURRENCY = 20


def application(task: driver.Task, sink: driver.Sink | None) -> tuple[procrastinate.App, Any]:
    sizes = {"min_size": 1, "max_size": CONCURRENCY} if task.tuned else {}
    connector = procrastinate.PsycopgConnector(conninfo=task.postgres, **sizes)
    app = procrastinate.App(connector=connector)

    @app.task(name="publish", retry=5 if task.tuned else False)
    async def publish(body: dict[str, Any]) -> None:
        assert sink is not None
        await sink.send(body)

    return app, publish


async def fill(task: driver.Task) -> None:
    app, publish = application(task, None)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        jobs = [publish.configure(lock=key).make_new_job(body=b) for key, b in task.events()]
        for at in range(0, len(jobs), 1000):
            await app.job_manager.batch_defer_jobs_async(jobs[at : at + 1000])


@asynccontextmanager
async def working(task: driver.Task, sink: driver.Sink) -> AsyncIterator[None]:
    app, _ = application(task, sink)
    settings: dict[str, Any] = (
        {"concurrency": CONCURRENCY, "delete_jobs": "successful", "fetch_job_polling_interval": 0.2}
        if task.tuned
        else {}
    )
    async with app.open_async():
        worker = app.run_worker_async(install_signal_handlers=False, **settings)
        async with driver.in_background(worker):
            yield


driver.run(fill, working, "SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")

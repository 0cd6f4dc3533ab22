"""A dashboard over a filled outbox, and an HTTP client that acts like a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.types import ASGIApp

from outrider import DomainEvent, EventEnvelope, Outbox
from outrider.dashboard import dashboard
from outrider.events.context import handling

outbox = Outbox(wake_up=False)
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
JSON = {"Accept": "application/json"}


def event(aggregate: str = "a", type: str = "thing.changed", **payload: Any) -> DomainEvent:
    return DomainEvent(type, "thing", aggregate, payload or {"n": 1})


async def record(
    engine: AsyncEngine, *events: DomainEvent | EventEnvelope, cause: EventEnvelope | None = None
) -> None:
    async with engine.begin() as connection:
        if cause is None:
            outbox.record(connection, *events)
        else:
            with handling(cause):
                outbox.record(connection, *events)


async def run(engine: AsyncEngine, statement: str, **values: object) -> list[Any]:
    async with engine.begin() as connection:
        done = await connection.execute(text(statement), values)
        return [tuple(row) for row in done] if done.returns_rows else []


async def states(engine: AsyncEngine) -> dict[str, int]:
    rows = await run(engine, "SELECT status, count(*) FROM outbox GROUP BY status")
    return dict(rows)


async def fail(engine: AsyncEngine, type: str, error: str = "Refused") -> None:
    change = "UPDATE outbox SET status = 'failed', last_error = :error, retry_count = 9 "
    await run(engine, change + "WHERE event_type = :type", error=error, type=type)


@asynccontextmanager
async def client_of(app: ASGIApp, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    address = options.pop("address", "127.0.0.1")
    transport = httpx.ASGITransport(app, client=(address, 5000))
    options = {"base_url": "http://localhost", **options}
    async with AsyncExitStack() as stack:
        if isinstance(app, Starlette):
            await stack.enter_async_context(living(app))
        yield await stack.enter_async_context(httpx.AsyncClient(transport=transport, **options))


def living(app: Starlette) -> AbstractAsyncContextManager[object]:
    """Run the lifespan of the application, also if it is mounted in another one."""
    return app.router.lifespan_context(app)


@asynccontextmanager
async def page_of(engine: AsyncEngine, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(dashboard(engine, **options)) as client:
        yield client

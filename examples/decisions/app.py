"""The application: routes, life cycle, and who delivers the events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.datastructures import Headers
from starlette.types import Scope

from examples.decisions.dashboard import projection
from examples.decisions.database import create_tables, units_of_work
from examples.decisions.routes import USER_HEADER, router
from examples.decisions.settings import Settings
from outrider import (
    BackgroundService,
    InboxCleanup,
    InProcessPublisher,
    OutboxRelay,
    SqlOutboxStore,
    SqlProcessedEvents,
    open_engine,
)
from outrider.integrations.fastapi import (
    EventContextMiddleware,
    health_router,
    outrider_lifespan,
    validation_error_handler,
)
from outrider.observability import log_signals


def create_app(settings: Settings) -> FastAPI:
    engine = open_engine(settings.database_url)
    parts: list[BackgroundService] = [InboxCleanup(SqlProcessedEvents(engine))]
    if settings.redis_url is None:  # otherwise `outrider relay` and `outrider consume` do it
        parts.append(make_relay(engine, settings))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await create_tables(engine)
            yield
        finally:
            await engine.dispose()

    app = FastAPI(title="Decisions", lifespan=outrider_lifespan(*parts, within=lifespan))
    app.state.unit_of_work = units_of_work(engine)
    app.add_middleware(EventContextMiddleware, user_of=_user_of)
    app.add_exception_handler(RequestValidationError, validation_error_handler)
    app.include_router(router)
    app.include_router(health_router(parts))
    return app


def make_relay(engine: AsyncEngine, settings: Settings) -> OutboxRelay:
    """From the outbox to the dashboard within this process."""
    publisher = InProcessPublisher(projection(engine), on_signal=log_signals)
    return OutboxRelay(SqlOutboxStore(engine), publisher, settings.relay, on_signal=log_signals)


def _user_of(scope: Scope) -> str | None:
    """Goes with every event; the routes refuse a request if it is missing or malformed."""
    return Headers(scope=scope).get(USER_HEADER)

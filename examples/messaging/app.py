"""The application: routes, life cycle, and who delivers the events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.ext.asyncio import async_sessionmaker

from outrider import OutboxRelay, SqlOutboxStore, open_engine
from outrider.integrations.fastapi import (
    EventContextMiddleware,
    health_router,
    outrider_lifespan,
    validation_error_handler,
)

from .models import OUTBOX_TABLES
from .processing import MessageProcessor
from .routes import group_messages, scheduled_messages
from .settings import Settings


def create_app(settings: Settings) -> FastAPI:
    engine = open_engine(settings.database_url, pool_pre_ping=True)
    processor = MessageProcessor()
    relays = []
    if settings.rabbitmq_url is None:  # otherwise a relay process does it, see relay.py
        store = SqlOutboxStore(engine, OUTBOX_TABLES)
        relays = [OutboxRelay(store, processor.publisher(), settings.relay)]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await engine.dispose()

    app = FastAPI(title="Messaging", lifespan=outrider_lifespan(*relays, within=lifespan))
    app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
    app.add_middleware(EventContextMiddleware)
    app.add_exception_handler(RequestValidationError, validation_error_handler)
    app.include_router(group_messages)
    app.include_router(scheduled_messages)
    app.include_router(health_router(relays))

    @app.get("/processed", tags=["events"])
    async def processed() -> list[dict[str, str]]:
        """What the handler of this process has seen lately; with RabbitMQ, nothing."""
        return list(processor.processed)

    return app

"""The application: the container, the relay beside the requests, and what ends before what."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dishka import AsyncContainer, Provider, make_async_container
from dishka.integrations.fastapi import setup_dishka
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.ext.asyncio import AsyncEngine

from examples.accounts import account, core
from examples.accounts.account import EventDispatcher
from examples.accounts.persistence import create_tables, map_tables, open_engine
from examples.accounts.providers import AccountsProvider
from examples.accounts.routes import router
from examples.accounts.settings import Settings
from outrider import (
    InboxCleanup,
    InProcessPublisher,
    OutboxRelay,
    RelayConfig,
    SqlInbox,
    SqlOutboxStore,
    SqlProcessedEvents,
)
from outrider.integrations.dishka import OutriderProvider, dishka_scope
from outrider.integrations.fastapi import (
    EventContextMiddleware,
    health_router,
    outrider_lifespan,
    validation_error_handler,
)
from outrider.observability import log_signals


def create_app(settings: Settings, *replacements: Provider) -> FastAPI:
    """A replacement goes before the provider of the same thing here; tests need that."""
    map_tables()
    engine = open_engine(settings.database_url)
    container = make_async_container(
        AccountsProvider(),
        OutriderProvider(dispatcher=EventDispatcher),
        *replacements,
        context={AsyncEngine: engine},
    )
    parts = [
        InboxCleanup(SqlProcessedEvents(engine)),
        make_relay(engine, container, settings.relay),
    ]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await create_tables(engine)
            yield
        finally:
            await container.close()
            await engine.dispose()

    # The relay stops before the container closes, since its handlers live from it.
    app = FastAPI(title="Accounts", lifespan=outrider_lifespan(*parts, within=lifespan))
    setup_dishka(container, app)
    app.add_middleware(EventContextMiddleware)
    app.add_exception_handler(RequestValidationError, validation_error_handler)
    app.include_router(router)
    app.include_router(health_router(parts))
    return app


def make_relay(engine: AsyncEngine, container: AsyncContainer, config: RelayConfig) -> OutboxRelay:
    """Each handler gets a request scope of its own, with its own session and unit of work."""
    publisher = InProcessPublisher(
        [*account.handlers, *core.handlers],
        scope=dishka_scope(container),
        inbox=SqlInbox(),
        on_signal=log_signals,
    )
    return OutboxRelay(SqlOutboxStore(engine), publisher, config, on_signal=log_signals)

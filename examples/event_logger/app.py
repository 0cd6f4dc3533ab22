"""The application: requests that record, a relay that publishes, a stream that shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.ext.asyncio import async_sessionmaker

from examples.event_logger.messages import message_router
from examples.event_logger.moderation import ModeratedStream, moderation_router
from examples.event_logger.operations import Numbers, operations_router
from examples.event_logger.settings import Settings
from examples.event_logger.tables import OUTBOX_TABLES, SINK, create_tables
from outrider import EventPublisher, Outbox, OutboxRelay, SqlOutboxStore, open_engine
from outrider.admin import OutboxInspector
from outrider.integrations.fastapi import (
    EventContextMiddleware,
    health_router,
    outrider_lifespan,
    validation_error_handler,
)
from outrider.integrations.starlette import stream_route
from outrider.stream import SqlDeliveredEvents, StreamManager

PAGE = Path(__file__).with_name("page")
# The page's own files and this server, and nothing that somebody has written into a message.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)


def create_app(settings: Settings, publisher: EventPublisher | None = None) -> FastAPI:
    """Another publisher may be put between the outbox and the stream; tests need that."""
    engine = open_engine(settings.database_url, pool_pre_ping=True)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    inspector = OutboxInspector(engine, OUTBOX_TABLES)
    numbers = Numbers(inspector)
    outbox = Outbox(OUTBOX_TABLES, routes={"*": SINK}, on_signal=numbers.on_signal)
    relay = OutboxRelay(
        SqlOutboxStore(engine, OUTBOX_TABLES, sink=SINK, announce=True),
        publisher or ModeratedStream(sessions),
        settings.relay,
        on_signal=numbers.on_signal,
    )
    stream = StreamManager(SqlDeliveredEvents(engine, OUTBOX_TABLES, sink=SINK))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await create_tables(engine)
            yield
        finally:
            await engine.dispose()

    # Each part's start() is called in this order, and its stop() in the opposite one.
    life = outrider_lifespan(relay, stream, within=lifespan)
    app = FastAPI(title="Event logger", lifespan=life)
    app.state.relay = relay
    app.add_middleware(EventContextMiddleware)
    app.add_exception_handler(RequestValidationError, validation_error_handler)
    app.include_router(message_router(sessions, outbox))
    app.include_router(moderation_router(sessions))
    app.include_router(operations_router(engine, inspector, numbers))
    app.include_router(health_router([relay, stream]))
    app.router.routes.append(stream_route(stream, authorize=_anybody))
    app.mount("/page", StaticFiles(directory=PAGE))
    app.add_api_route("/", _page, include_in_schema=False)
    return app


async def _anybody(_: Request) -> bool:
    """All channels are public here; elsewhere this looks at the session's cookie."""
    return True


async def _page() -> FileResponse:
    return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})

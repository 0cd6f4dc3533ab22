"""What people who run this look at: failed events, another try for them, and numbers."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, ConfigDict
from sqlalchemy.ext.asyncio import AsyncEngine

from examples.event_logger.tables import OUTBOX_TABLES, SINK
from outrider.admin import EventFilter, OutboxInspector, OutboxRepair
from outrider.observability import Signal, log_signals
from outrider.observability.prometheus import PrometheusMetrics


class FailedEvent(BaseModel):
    """No payload: who looks here may not be meant to read the messages."""

    model_config = ConfigDict(from_attributes=True)

    event_id: UUID
    event_type: str
    aggregate_id: str
    retry_count: int
    last_error: str | None
    created_at: datetime


class Retried(BaseModel):
    events: int


class Numbers:
    """The numbers of this process, and of the backlog when somebody asks."""

    def __init__(self, inspector: OutboxInspector) -> None:
        self._inspector = inspector
        self._registry = CollectorRegistry()  # of this application, not of the whole process
        self._metrics = PrometheusMetrics(self._registry)

    def on_signal(self, signal: Signal) -> None:
        log_signals(signal)
        self._metrics.on_signal(signal)

    async def latest(self) -> bytes:
        self._metrics.show_backlog(await self._inspector.sinks())
        return generate_latest(self._registry)


def operations_router(
    engine: AsyncEngine, inspector: OutboxInspector, numbers: Numbers
) -> APIRouter:
    router = APIRouter(tags=["operations"])
    repair = OutboxRepair(engine, OUTBOX_TABLES, who="event_logger API")

    @router.get("/failed")
    async def failed() -> list[FailedEvent]:
        """The newest events that were refused too often."""
        page = await inspector.events(EventFilter(sink=SINK, status="failed"))
        return [FailedEvent.model_validate(event) for event in page.events]

    @router.post("/failed/retry")
    async def retry(event_id: UUID | None = None) -> Retried:
        """Give one event, or all that failed, all their attempts again."""
        wanted = EventFilter(sink=SINK, status="failed", event_id=event_id)
        return Retried(events=await repair.retry(wanted))

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await numbers.latest(), media_type=CONTENT_TYPE_LATEST)

    return router

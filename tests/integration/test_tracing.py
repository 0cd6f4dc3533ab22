"""One trace from the request to the handler, seen by an exporter in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider import (
    ConsumerConfig,
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    ExponentialRetry,
    Outbox,
    create_all,
)
from outrider.cli.publishers import make_publisher
from outrider.events.context import trace_events_with
from outrider.integrations.fastapi import EventContextMiddleware
from outrider.observability.opentelemetry import (
    TracedPublisher,
    trace_recording,
    traced,
)
from outrider.settings.settings import read_settings
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.services import Services
from outrider.testing.spy import OutboxSpy
from tests.support.canary import CANARY
from tests.support.processes.effects_app import prepare_broker, source_of

outbox = Outbox(wake_up=False)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = provider.get_tracer("test")
    trace_recording(made)
    yield made
    trace_events_with(None)
    provider.shutdown()


class Handler:
    name = "invoice"

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.done = fails, asyncio.Event()

    async def handle(self, envelope: EventEnvelope, /) -> None:
        if self.fails:
            self.fails -= 1
            raise ValueError(CANARY)
        self.done.set()


async def travel(engine: AsyncEngine, tracer: Tracer, handler: Handler) -> None:
    """From a request over the outbox, a relay and a broker to the handler."""
    broker = MemoryBroker(receive_wait=timedelta(milliseconds=10))
    with tracer.start_as_current_span("POST /orders"):
        async with engine.begin() as connection:
            event = DomainEvent("order.placed", "order", CANARY, {"total": CANARY})
            outbox.record(connection, event)
    await OutboxSpy(engine).deliver(TracedPublisher(broker.publisher(), "broker", tracer))
    handlers = traced([("order.*", handler)], tracer)
    quick = ExponentialRetry(first=timedelta(milliseconds=1))
    async with EventConsumer(broker.source(), handlers, ConsumerConfig(retry=quick)):
        await asyncio.wait_for(handler.done.wait(), 20)


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_one_trace_leads_from_the_request_to_the_handler(
    database: AsyncEngine, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    await travel(database, tracer, Handler())

    spans = by_name(exporter)
    request, create = spans["POST /orders"], spans["create order.placed"]
    send, process = spans["send broker"], spans["process order.placed"]
    assert create.parent is not None
    assert process.parent is not None
    assert create.parent.span_id == request.context.span_id
    assert process.parent.span_id == create.context.span_id
    assert process.context.trace_id == request.context.trace_id
    assert [link.context.span_id for link in send.links] == [create.context.span_id]


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka", "nats", "redis"])
async def test_trace_of_an_http_request_goes_on_behind_every_broker(
    services: Services,
    tmp_path: Path,
    tracer: Tracer,
    exporter: InMemorySpanExporter,
    kind: str,
) -> None:
    # given
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/outbox.db")
    await create_all(engine)
    url, name = getattr(services, kind).url, f"traced{uuid4().hex[:12]}"
    await prepare_broker(url, name)
    handler, trace_id, span_id = Handler(), uuid4().hex, uuid4().hex[:16]
    publisher = make_publisher(read_settings({"to": url, "destination": name}, {}).process)

    # when
    transport = ASGITransport(shop(engine))
    async with AsyncClient(transport=transport, base_url="http://shop") as client:
        headers = {"traceparent": f"00-{trace_id}-{span_id}-01", "tracestate": "vendor=1"}
        assert (await client.post("/orders", headers=headers)).status_code == 204
    await OutboxSpy(engine).deliver(TracedPublisher(publisher, kind, tracer))
    handlers = traced([("order.*", handler)], tracer)
    async with EventConsumer(source_of(url, name), handlers):
        await asyncio.wait_for(handler.done.wait(), 60)
    await engine.dispose()

    # then
    spans = by_name(exporter)
    create, send = spans["create order.placed"], spans[f"send {kind}"]
    process = spans["process order.placed"]
    assert create.parent is not None
    assert process.parent is not None
    assert format(create.parent.span_id, "016x") == span_id
    assert process.parent.span_id == create.context.span_id
    assert [link.context.span_id for link in send.links] == [create.context.span_id]
    assert {format(s.context.trace_id, "032x") for s in (create, process)} == {trace_id}
    assert process.context.trace_state.get("vendor") == "1"
    assert CANARY not in "".join(span.to_json() for span in exporter.get_finished_spans())


def shop(engine: AsyncEngine) -> FastAPI:
    """An application that knows nothing of tracing."""
    app = FastAPI()
    app.add_middleware(EventContextMiddleware)

    @app.post("/orders", status_code=204)
    async def place() -> None:
        async with engine.begin() as connection:
            event = DomainEvent("order.placed", "order", CANARY, {"total": CANARY})
            outbox.record(connection, event)

    return app


async def test_failure_is_told_by_its_class_and_nothing_of_the_event_is_shown(
    database: AsyncEngine, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    await travel(database, tracer, Handler(fails=1))

    processed = [s for s in exporter.get_finished_spans() if s.name == "process order.placed"]
    failed, fine = processed
    assert failed.status.status_code is StatusCode.ERROR
    assert dict(failed.attributes or {})["error.type"] == "ValueError"
    assert fine.status.status_code is not StatusCode.ERROR
    assert CANARY not in "".join(span.to_json() for span in exporter.get_finished_spans())


async def test_without_tracing_events_carry_no_trace(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        outbox.record(connection, DomainEvent("order.placed", "order", "1", {}))

    [envelope] = await OutboxSpy(database).waiting()

    assert envelope.metadata.traceparent is None


SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from outrider import InMemoryEventBus
from outrider.cli.telemetry import traced

bus = InMemoryEventBus()
assert traced(bus, "default") is bus
trace.set_tracer_provider(TracerProvider())
print(type(traced(bus, "default")).__name__)
"""


def test_relay_process_traces_its_batches_if_tracing_was_set_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SET_UP], capture_output=True, text=True, check=True
    )

    assert done.stdout == "TracedPublisher\n"

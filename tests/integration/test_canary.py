"""One event with secrets in every corner goes all the way, at DEBUG, and nobody tells them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import inspect, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from outrider import (
    ConsumerConfig,
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    ExponentialRetry,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlInbox,
    SqlOutboxStore,
)
from outrider import signals as s
from outrider.brokers.in_process import InProcessPublisher
from outrider.cli.app import app
from outrider.cli.publishers import make_publisher
from outrider.events.context import event_context, trace_events_with
from outrider.observability.logging import EventFormatter, RedactingFilter, log_signals
from outrider.observability.opentelemetry import TracedPublisher, trace_recording, traced
from outrider.observability.prometheus import PrometheusMetrics
from outrider.ports import EventPublisher
from outrider.settings.settings import read_settings
from outrider.store.schema.migrate import create_all
from outrider.stream import StreamManager, StreamPublisher
from outrider.stream.delivered import SqlDeliveredEvents
from tests.support.canary import CANARY
from tests.support.databases import create_database
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL
from tests.support.pages.pages import page_of
from tests.support.processes.effects_app import source_of
from tests.support.until import until

PASSWORD, ERROR = f"{CANARY}-dsn", f"{CANARY}-error"
CORRELATION = "correlation-5e1"
EVENT = DomainEvent("order.placed", "order", "7", {"card": f"{CANARY}-payload"})
ONCE = ExponentialRetry(first=timedelta(milliseconds=1))
MAY_HOLD_IT = {("outbox", "payload"), ("outbox", "metadata")}
SINKS = ["rabbitmq", "in-process"]
OTHERS = ["kafka", "nats", "redis", "stream"]
PAGES = (
    *("/", "/events", "/events?state=failed", "/failures", "/relays", "/inbox", "/audit"),
    *("/events/{id}", "/events/{id}/caused", "/api/samples"),
)


class NotificationListener(logging.Handler):
    """Hears all loggers at DEBUG, and writes down whole records: text, extras, traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(EventFormatter("%(levelname)s %(name)s %(message)s"))
        self.addFilter(RedactingFilter())
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []
        self.signals: list[s.Signal] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(self.format(record) + repr(vars(record)))

    def __call__(self, signal: s.Signal) -> None:
        log_signals(signal)
        self.signals.append(signal)


@pytest.fixture
def ears() -> Iterator[NotificationListener]:
    ears, root = NotificationListener(), logging.getLogger()
    level = root.level
    root.addHandler(ears)
    root.setLevel(logging.DEBUG)
    yield ears
    root.setLevel(level)
    root.removeHandler(ears)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_recording(provider.get_tracer("test"))
    exporter.tracer = provider.get_tracer("test")  # type: ignore[attr-defined]
    yield exporter
    trace_events_with(None)
    provider.shutdown()


@pytest.fixture(params=["postgresql", "sqlite"])
async def database(
    request: pytest.FixtureRequest, ears: NotificationListener, tmp_path: Path
) -> AsyncIterator[AsyncEngine]:
    """Whose URL has a password; every message of every driver is heard from the beginning."""
    if request.param == "sqlite":
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    else:
        services, role = request.getfixturevalue("services"), f"canary_{uuid4().hex}"
        services.postgres.psql(f"create role {role} superuser login password '{PASSWORD}'")
        url = make_url(create_database(services)).set(username=role, password=PASSWORD)
        engine = create_async_engine(url.set(drivername="postgresql+asyncpg"))
    await create_all(engine)
    yield engine
    await engine.dispose()


class Fails:
    """As handlers do: what it raises quotes the event."""

    name = "shop.invoice"

    async def handle(self, envelope: EventEnvelope, /) -> None:
        raise ValueError(f"{ERROR} {envelope.payload} {envelope.metadata.user_id}")


class Journey:
    def __init__(
        self, engine: AsyncEngine, ears: NotificationListener, spans: InMemorySpanExporter
    ) -> None:
        self.engine, self.ears, self.tracer = engine, ears, spans.tracer  # type: ignore[attr-defined]
        self.registry = CollectorRegistry()
        self._count = PrometheusMetrics(self.registry).on_signal
        self.said: list[str] = []

    def on_signal(self, signal: s.Signal) -> None:
        self.ears(signal)
        self._count(signal)

    async def record(self) -> None:
        outbox = Outbox(wake_up=False, on_signal=self.on_signal)
        given = {"correlation_id": CORRELATION, "user_id": f"{CANARY}-user"}
        with event_context(**given, tracestate=f"vendor={CANARY}-header"):
            async with self.engine.begin() as connection:
                outbox.record(connection, EVENT)

    async def relay(self, publisher: EventPublisher, **options: Any) -> None:
        """Until the event is delivered, or has failed."""
        store = SqlOutboxStore(self.engine, **options)
        config = RelayConfig(retry=ONCE, max_retries=2, poll_interval=timedelta(milliseconds=50))
        sink = TracedPublisher(publisher, tracer=self.tracer)
        async with OutboxRelay(store, sink, config, on_signal=self.on_signal):
            await until(lambda: self.has(s.BatchPublished, s.EventFailed), "it is delivered")
            await until(self._settled, "it is settled")
        self.said.append(repr(publisher) + str(publisher))

    async def consume(self, url: str, name: str) -> None:
        """Until the message is set aside, since its handler fails each time."""
        source = source_of(url, name)
        handlers = traced([("order.*", Fails())], self.tracer)
        inbox = SqlInbox(async_sessionmaker(self.engine))
        options: dict[str, Any] = {"inbox": inbox, "on_signal": self.on_signal}
        async with EventConsumer(
            source, handlers, ConsumerConfig(retry=ONCE, max_retries=2), **options
        ):
            await until(lambda: self.has(s.EventDeadLettered), "it is set aside")
        self.said.append(repr(source) + str(source))

    def has(self, *kinds: type) -> bool:
        return any(isinstance(signal, kinds) for signal in self.ears.signals)

    async def _settled(self) -> bool:
        async with self.engine.connect() as connection:
            return (
                "pending"
                not in (await connection.execute(text("SELECT status FROM outbox"))).scalars()
            )

    async def look(self, to: str | None) -> None:
        """At everything that people and programs can look at."""
        event_id = str(EVENT.event_id)
        async with page_of(self.engine) as client:
            for path in PAGES:
                for accept in ("text/html", "application/json"):
                    asked = path.format(id=event_id)
                    answer = await client.get(asked, headers={"Accept": accept})
                    assert answer.status_code == 200, asked
                    self.said.append(answer.text + str(answer.headers))
        url = self.engine.url.set(drivername=self.engine.url.get_backend_name())
        known = {"DATABASE_URL": url.render_as_string(hide_password=False), "OUTBOX_TO": to}
        for command in (
            *(["status"], ["status", "--json"], ["failed"], ["failed", "--json"], ["doctor"]),
            *(["show", event_id], ["show", event_id, "--json"], ["config"], ["config", "--json"]),
            ["catalog", "show", "tests.support.shop"],
        ):
            done = await asyncio.to_thread(CliRunner().invoke, app, command, env=known)
            assert done.exception is None or isinstance(done.exception, SystemExit), command
            self.said.append(done.output)
        self.said.append(generate_latest(self.registry).decode())

    async def columns(self) -> dict[tuple[str, str], str]:
        """All that is stored, except where the secrets belong."""
        found = {}
        async with self.engine.connect() as connection:
            names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
            for name in names:
                rows = (await connection.execute(text(f"SELECT * FROM {name}"))).mappings()  # noqa: S608
                for row in rows:
                    for column, value in row.items():
                        if (name, column) not in MAY_HOLD_IT:
                            found[name, column] = found.get((name, column), "") + str(value)
            if self.engine.dialect.name == "postgresql":
                activity = await connection.execute(text("SELECT query FROM pg_stat_activity"))
                found["pg_stat_activity", "query"] = str(activity.scalars().all())
        return found


async def travel(journey: Journey, sink: str, request: pytest.FixtureRequest) -> str | None:
    """Through this sink; its URL, if it has one."""
    if sink == "in-process":
        await journey.relay(InProcessPublisher([("*", Fails())], on_signal=journey.on_signal))
        assert journey.has(s.EventFailed)
        return None
    if sink == "stream":
        await journey.relay(StreamPublisher(), announce=True)
        async with StreamManager(SqlDeliveredEvents(journey.engine, sink="default")) as manager:
            stream = manager.connect(since="start")
            seen = b""
            async for chunk in stream:
                seen += chunk
                if EVENT.event_type.encode() in seen:
                    break
            await stream.aclose()
        assert f"{CANARY}-payload".encode() in seen
        assert f"{CANARY}-user".encode() not in seen
        return None
    server = getattr(request.getfixturevalue("services"), sink)
    name = f"canary_{uuid4().hex}"
    source = source_of(server.url, name)
    if sink in ("rabbitmq", "kafka"):
        await source.open()  # the queue or topic must be there first
        await source.close()
    settings = {"OUTBOX_TO": server.url, "OUTBOX_DESTINATION": name}
    await journey.relay(make_publisher(read_settings({}, settings).process))
    await journey.consume(server.url, name)
    return str(server.url)


def where_it_leaks(words: list[str], places: dict[object, str]) -> list[tuple[object, str]]:
    return [
        (place, said[max(0, at - 300) : at + 60])
        for place, said in places.items()
        for word in words
        if (at := said.find(word)) >= 0
    ]


@pytest.mark.fault("E1", line="S-16")
@pytest.mark.parametrize(
    "sink",
    [*SINKS, *(pytest.param(name, marks=pytest.mark.faults) for name in OTHERS if FULL)],
)
async def test_secrets_stay_where_they_belong_and_every_line_names_its_request(
    database: AsyncEngine,
    sink: str,
    ears: NotificationListener,
    spans: InMemorySpanExporter,
    request: pytest.FixtureRequest,
    scoreboard: Scoreboard,
) -> None:
    journey = Journey(database, ears, spans)

    await journey.record()
    to = await travel(journey, sink, request)
    await journey.look(to)

    words = [CANARY]
    if password := to and make_url(to).password:
        words.append(password)
    assert where_it_leaks(words, dict(enumerate(ears.lines))) == []
    assert where_it_leaks(words, {"signals": repr(ears.signals)}) == []
    assert where_it_leaks(words, dict(enumerate(journey.said))) == []
    traces = "".join(span.to_json() for span in spans.get_finished_spans())
    assert where_it_leaks(words, {"traces": traces}) == []
    assert where_it_leaks(words, dict(await journey.columns())) == []
    about = [
        line
        for record, line in zip(ears.records, ears.lines, strict=True)
        if record.name.startswith("outrider") and str(EVENT.event_id) in line
    ]
    assert about
    assert [line for line in about if f"correlation_id={CORRELATION}" not in line] == []
    scoreboard.note("S-16", journeys=1, hits=0)

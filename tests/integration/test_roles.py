"""What each database role may do, and what it must not; and the whole flow as these roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from httpx import ASGITransport, AsyncClient
from psycopg import errors
from sqlalchemy import NullPool, make_url, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from outrider import (
    ConfigurationError,
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    Outbox,
    OutboxNames,
    OutboxTables,
    SqlInbox,
)
from outrider.admin.filters import EventFilter
from outrider.admin.inspector import OutboxInspector
from outrider.admin.repair import OutboxRepair
from outrider.admin.replay import Replay
from outrider.cli.app import app
from outrider.consumer.scopes import current_scope
from outrider.dashboard import dashboard
from outrider.store.schema import migrate as schema
from outrider.stream.delivered import SqlDeliveredEvents
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.services import Services
from outrider.testing.spy import OutboxSpy
from tests.support.databases import Database, fresh_postgres, insert, pipe

NAMES = OutboxNames(schema="app")
TABLES = OutboxTables(NAMES)
outbox = Outbox(TABLES, wake_up=False)


@pytest.fixture
def postgres(services: Services) -> Iterator[Database]:
    with fresh_postgres(services) as database:
        yield database


def outrider(*arguments: str, **environment: str) -> str:
    done = CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def roles(services: Services, postgres: Database) -> Iterator[dict[str, str]]:
    """All roles, with nothing but the printed grants; URLs by what they are for."""
    suffix = make_url(postgres.url).database
    names = {what: f"{what}-{suffix}" for what in schema.ROLES}
    options = [f"--{what}-role={name}" for what, name in names.items()]
    outrider("schema", "apply", "--schema", "app", DATABASE_URL=postgres.url)
    postgres.run(*(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'" for name in names.values()))
    pipe(services, postgres, outrider("schema", "print", "--schema=app", "--roles", *options))
    url = make_url(postgres.url)
    yield {
        what: url.set(username=name, password="x").render_as_string(hide_password=False)
        for what, name in names.items()
    }
    quoted = ", ".join(f'"{name}"' for name in names.values())
    postgres.run(f"DROP OWNED BY {quoted}", f"DROP ROLE {quoted}")


def attempt(url: str, sql: str) -> bool:
    """Whether the role may do this."""
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.encode())
        return True
    except errors.InsufficientPrivilege:
        return False


def test_producer_may_insert_and_nothing_else(roles: dict[str, str], postgres: Database) -> None:
    producer = roles["producer"]

    assert attempt(producer, insert("app.outbox"))
    assert postgres.run("SELECT position, status FROM app.outbox") == [(1, "pending")]
    for refused in (
        "SELECT * FROM app.outbox",
        "UPDATE app.outbox SET status = 'published'",
        "DELETE FROM app.outbox",
        "TRUNCATE app.outbox",
        "SELECT * FROM app.processed_events",
        "SELECT * FROM app.outbox_lanes",
        "CREATE TABLE app.mine (x integer)",
    ):
        assert not attempt(producer, refused), refused


def test_relay_may_settle_but_not_change_or_invent_events(
    roles: dict[str, str], postgres: Database
) -> None:
    relay = roles["relay"]
    postgres.run(insert("app.outbox"))

    for allowed in (
        "SELECT * FROM app.outbox FOR UPDATE SKIP LOCKED",
        "UPDATE app.outbox SET status = 'failed', retry_count = 1, crash_count = 1, "
        "next_retry_at = now(), last_error = 'no', attempts = '[]', published_at = now(), "
        "delivery_number = 1",
        "INSERT INTO app.outbox_lanes (sink, lane) VALUES ('default', 1) ON CONFLICT DO NOTHING",
        "SELECT * FROM app.outbox_lanes FOR UPDATE SKIP LOCKED",
        "UPDATE app.outbox_sinks SET last_delivery_number = last_delivery_number + 1",
        "DELETE FROM app.outbox_relays",
        "SELECT max(version) FROM app.outbox_schema",
    ):
        assert attempt(relay, allowed), allowed
    for refused in (
        insert("app.outbox").replace("0190", "0191"),
        "UPDATE app.outbox SET payload = '{}'",
        "UPDATE app.outbox SET position = DEFAULT",
        "UPDATE app.outbox SET aggregate_id = 'other'",
        "TRUNCATE app.outbox",
        "SELECT * FROM app.processed_events",
        "INSERT INTO app.outbox_schema (version) VALUES (99)",
    ):
        assert not attempt(relay, refused), refused
    assert attempt(relay, "DELETE FROM app.outbox")
    outrider("schema", "check", "--schema=app", DATABASE_URL=relay)


def test_consumer_may_remember_and_forget(roles: dict[str, str]) -> None:
    consumer = roles["consumer"]

    for allowed in (
        "INSERT INTO app.processed_events (event_id, handler_name) "
        "VALUES (gen_random_uuid(), 'invoice') ON CONFLICT DO NOTHING",
        "SELECT * FROM app.processed_events",
        "DELETE FROM app.processed_events WHERE processed_at < clock_timestamp()",
    ):
        assert attempt(consumer, allowed), allowed
    for refused in (
        "UPDATE app.processed_events SET handler_name = 'x'",
        "SELECT * FROM app.outbox",
        insert("app.outbox"),
    ):
        assert not attempt(consumer, refused), refused


def test_reader_may_follow_deliveries_and_nothing_else(roles: dict[str, str]) -> None:
    reader = roles["reader"]

    assert attempt(reader, "SELECT payload, metadata, delivery_number FROM app.outbox")
    for refused in (
        "SELECT last_error FROM app.outbox",
        "SELECT payload FROM app.outbox FOR UPDATE",
        "UPDATE app.outbox SET delivery_number = 1",
        "DELETE FROM app.outbox",
        insert("app.outbox"),
        "SELECT * FROM app.outbox_actions",
        "SELECT * FROM app.outbox_lanes",
    ):
        assert not attempt(reader, refused), refused


def test_page_sees_no_payload_and_changes_nothing(roles: dict[str, str]) -> None:
    page = roles["page"]

    assert attempt(page, "SELECT event_type, last_error, attempts, metadata FROM app.outbox")
    assert attempt(page, "SELECT * FROM app.outbox_actions")
    for refused in (
        "SELECT payload FROM app.outbox",
        "SELECT * FROM app.outbox",
        "SELECT id FROM app.outbox FOR UPDATE",
        "UPDATE app.outbox SET status = 'pending'",
        "DELETE FROM app.outbox",
        insert("app.outbox"),
        "INSERT INTO app.outbox_actions (who, action, filter) VALUES ('x', 'retry', '{}')",
        "DELETE FROM app.outbox_actions",
        "DELETE FROM app.processed_events",
    ):
        assert not attempt(page, refused), refused


def test_operator_may_repair_but_neither_change_what_happened_nor_its_own_traces(
    roles: dict[str, str],
) -> None:
    for refused in (
        "UPDATE app.outbox SET payload = '{}'",
        "UPDATE app.outbox SET aggregate_id = 'other'",
        "DELETE FROM app.outbox_actions",
        "UPDATE app.outbox_lanes SET token = 0",
        "UPDATE app.outbox_sinks SET last_delivery_number = 0",
        "DELETE FROM app.processed_events",
        "TRUNCATE app.outbox",
    ):
        assert not attempt(roles["operator"], refused), refused


def test_grants_are_for_the_roles_that_are_named() -> None:
    printed = schema.grants(producer="a", consumer='c"d')

    assert printed[0] == 'GRANT INSERT ON "outbox" TO "a"'
    assert printed[1].endswith('TO "c""d"')
    assert len(printed) == 2
    with pytest.raises(ConfigurationError, match="role boss: there is producer, relay"):
        schema.grants(boss="b")


class Invoice:
    name = "invoice"

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def handle(self, envelope: EventEnvelope, /) -> None:
        scope = current_scope()
        assert scope is not None
        session = await scope.get(AsyncSession)
        await session.execute(text("INSERT INTO invoices VALUES (:id)"), {"id": envelope.event_id})
        self.done.set()


@pytest.fixture
async def engines(roles: dict[str, str], postgres: Database) -> AsyncIterator[dict[str, Any]]:
    """An engine for each role; the producer and the consumer have a table of their own."""
    producer, consumer = (make_url(roles[role]).username for role in ("producer", "consumer"))
    postgres.run(
        "CREATE TABLE orders (id text)",
        "CREATE TABLE invoices (id uuid)",
        f'GRANT INSERT ON orders TO "{producer}"',
        f'GRANT INSERT ON invoices TO "{consumer}"',
    )
    made = {role: engine_of(url) for role, url in roles.items()}
    yield made
    for engine in made.values():
        await engine.dispose()


def engine_of(url: str) -> AsyncEngine:
    return create_async_engine(
        make_url(url).set(drivername="postgresql+asyncpg"), poolclass=NullPool
    )


async def test_whole_flow_runs_as_these_roles(
    engines: dict[str, AsyncEngine], roles: dict[str, str]
) -> None:
    broker = MemoryBroker(receive_wait=timedelta(milliseconds=10))
    event = DomainEvent("order.placed", "order", "1", {"total": 5})

    # the producer records
    async with engines["producer"].begin() as connection:
        await connection.execute(text("INSERT INTO orders VALUES ('1')"))
        outbox.record(connection, event)

    # the relay brings it to the broker, and is well
    spy = OutboxSpy(engines["relay"], TABLES)
    assert await spy.deliver(broker.publisher()) == 1
    assert "enough for a relay" in await asyncio.to_thread(
        outrider, "doctor", DATABASE_URL=roles["relay"], OUTBOX_SCHEMA="app"
    )

    # the consumer takes it in with its inbox
    handler, inbox = Invoice(), SqlInbox(async_sessionmaker(engines["consumer"]), TABLES)
    async with EventConsumer(broker.source(), [("order.*", handler)], inbox=inbox):
        await asyncio.wait_for(handler.done.wait(), 30)

    # the live stream follows
    delivered = SqlDeliveredEvents(engines["reader"], TABLES, sink="default")
    assert "notified" in await delivered.open(lambda _word: None)
    assert [found.envelope.event_id for found in await delivered.after(0, 10)] == [event.event_id]
    await delivered.close()

    # the page shows it
    async with browsing(engines["page"], read_only=True) as page:
        looks = ["", "events", f"events/{event.event_id}", f"events/{event.event_id}/caused"]
        looks += ["events?state=published&type=order.*", "events?state=pending&type=order.*"]
        for look in (*looks, "failures", "relays", "inbox", "audit"):
            assert (await page.get(f"/{look}")).status_code == 200, look

    # the operator replays it, also to another sink, and repairs
    operator = engines["operator"]
    for to in (None, "archive"):
        replay = Replay(operator, TABLES)
        assert await replay.run(await replay.begin(EventFilter(event_type="order.*"), to=to)) == 1
    assert await OutboxRepair(operator, TABLES).discard(EventFilter(sink="archive")) == 1
    assert await spy.deliver(broker.publisher()) == 1
    assert await OutboxRepair(operator, TABLES).retry(EventFilter()) == 0
    assert await OutboxRepair(operator, TABLES).delete(EventFilter()) == 2
    assert await OutboxInspector(operator, TABLES).payload(event.event_id) is None


@asynccontextmanager
async def browsing(engine: AsyncEngine, *, read_only: bool) -> AsyncIterator[AsyncClient]:
    served = dashboard(
        engine, tables=TABLES, authorize=lambda _request, _action: True, read_only=read_only
    )
    transport = ASGITransport(served)
    async with AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client

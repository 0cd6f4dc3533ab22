"""The messaging example when a request fails on its way: both halves are there, or neither."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import event, make_url

from examples.messaging.app import create_app
from examples.messaging.controllers import GroupMessageController
from examples.messaging.database import upgrade
from examples.messaging.models import OUTBOX_TABLES, GroupMessage
from examples.messaging.schemas import GroupMessageChanges, NewGroupMessage
from examples.messaging.settings import Settings
from outrider import InMemoryEventBus, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.signals import Signal, WokenUp
from outrider.testing.services import Services
from tests.support.databases import DIALECTS, Database, fresh, fresh_postgres
from tests.support.examples.messaging_client import USER, Messaging, events_in, group_message
from tests.support.examples.serving import MAX_WAIT_S, served, serving
from tests.support.until import wait_until

NO_BROKER = "amqp://nobody.invalid"
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$
"""
REFUSE_MESSAGE = {
    "postgresql": (
        REFUSE,
        "CREATE TRIGGER refuse BEFORE INSERT ON group_messages "
        "FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE INSERT ON group_messages "
        "BEGIN SELECT RAISE(ABORT, 'not today'); END",
    ),
}
REFUSE_COMMIT = {
    "postgresql": (
        REFUSE,
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox_events "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    # A debt that nobody can pay; SQLite asks for it at the commit.
    "sqlite": (
        "CREATE TABLE nobody (id INTEGER PRIMARY KEY)",
        "CREATE TABLE debts (owed_by INTEGER REFERENCES nobody DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TRIGGER refuse AFTER INSERT ON outbox_events BEGIN "
        "INSERT INTO debts VALUES (1); END",
    ),
}


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        upgrade(database.url)
        yield database


@asynccontextmanager
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with served(app) as url:
        headers = {"X-User-ID": USER}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            yield http


def application(database: Database) -> FastAPI:
    """Without a relay of its own, so that events stay where they are."""
    return create_app(Settings(database_url=database.url, rabbitmq_url=NO_BROKER))


def messages_in(database: Database) -> list[Any]:
    return database.run("SELECT status FROM group_messages")


async def test_controller_that_fails_before_its_event_leaves_nothing(database: Database) -> None:
    # given
    database.run(*REFUSE_MESSAGE[database.dialect])

    async with client(application(database)) as http:
        # when
        failed = await http.post("/group-messages", json=group_message())

        # then
        assert failed.status_code == 500
        assert (messages_in(database), events_in(database)) == ([], [])

        # and the next request starts from nothing
        database.run(_drop_trigger(database, "group_messages"))
        assert (await http.post("/group-messages", json=group_message())).status_code == 201
        assert [event.type for event in events_in(database)] == ["group_message.created"]


class FailsAfterItsEvent(GroupMessageController):
    async def create(self, data: NewGroupMessage) -> GroupMessage:
        await super().create(data)
        raise RuntimeError("after the event")

    async def update(self, *arguments: Any) -> GroupMessage:
        await super().update(*arguments)
        raise RuntimeError("after the event")


async def test_controller_that_fails_after_its_event_leaves_nothing(database: Database) -> None:
    # given
    app = application(database)
    async with client(app) as http:
        message = (await http.post("/group-messages", json=group_message())).json()
        app.dependency_overrides[GroupMessageController] = FailsAfterItsEvent

        # when
        created = await http.post("/group-messages", json=group_message())
        url = f"/group-messages/{message['id']}"
        changed = await http.patch(url, json=GroupMessageChanges(status="queued"))

    # then
    assert (created.status_code, changed.status_code) == (500, 500)
    assert messages_in(database) == [("draft",)]
    assert [event.type for event in events_in(database)] == ["group_message.created"]


async def test_commit_that_fails_takes_message_and_event_back(database: Database) -> None:
    # given
    database.run(*REFUSE_COMMIT[database.dialect])
    app = application(database)
    if database.dialect == "sqlite":
        engine = app.state.sessions.kw["bind"].sync_engine
        event.listen(engine, "connect", _ask_for_debts)

    async with client(app) as http:
        # when
        failed = await http.post("/group-messages", json=group_message())

        # then
        assert failed.status_code == 500
        assert (messages_in(database), events_in(database)) == ([], [])

        # and the next request starts from nothing
        database.run(_drop_trigger(database, "outbox_events"))
        assert (await http.post("/group-messages", json=group_message())).status_code == 201
        assert messages_in(database) == [("draft",)]
        assert len(events_in(database)) == 1


async def test_request_succeeds_though_its_wake_up_fails_and_polling_finds_the_event(
    services: Services, tmp_path: Path
) -> None:
    # given: an application that may have one connection, which its requests use
    role, password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
    services.postgres.psql(f"CREATE ROLE {role} LOGIN PASSWORD '{password}' CONNECTION LIMIT 1")
    with fresh_postgres(services) as database:
        await asyncio.to_thread(upgrade, database.url)
        database.run(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}")
        url = make_url(database.url).set(username=role, password=password)
        environment = {
            "DATABASE_URL": url.render_as_string(hide_password=False),
            "RABBITMQ_URL": NO_BROKER,
        }
        woken_by: list[str] = []
        bus, engine = InMemoryEventBus(), database.async_engine()
        config = RelayConfig(poll_interval=timedelta(milliseconds=200))
        store = SqlOutboxStore(engine, OUTBOX_TABLES)

        def watch(signal: Signal) -> None:
            if isinstance(signal, WokenUp):
                woken_by.append(signal.source)

        with serving("messaging", tmp_path, environment) as application:
            async with OutboxRelay(store, bus, config, on_signal=watch):
                with Messaging(application.url, database) as messaging:
                    messaging.create("group", group_message())
                    await arrived(bus, 1)

                    # when: what woke the relay up at its start is over
                    woken_by.clear()
                    messaging.create("group", group_message())
                    await arrived(bus, 2)

            # then
            assert "notify" not in woken_by
            assert application.log.count("wake-up failed, relays will poll") == 1
        await engine.dispose()
    services.postgres.psql(f"DROP ROLE {role}")


def test_events_that_nobody_delivered_are_delivered_by_the_next_process(
    database: Database, tmp_path: Path
) -> None:
    # given: requests were answered, no relay has run, and the process is gone
    recording = {"DATABASE_URL": database.url, "RABBITMQ_URL": NO_BROKER}
    with (
        serving("messaging", tmp_path, recording) as application,
        Messaging(application.url, database) as messaging,
    ):
        message = messaging.create("group", group_message())
        messaging.change("group", message, status="queued")
    assert {event.status for event in events_in(database)} == {"pending"}

    # when
    with serving("messaging", tmp_path, {"DATABASE_URL": database.url}) as application:

        def processed() -> list[str]:
            seen = httpx.get(f"{application.url}/processed").json()
            return [each["event_type"] for each in seen]

        # then
        expected = ["group_message.created", "group_message.queued"]
        assert wait_until(lambda: processed() == expected, MAX_WAIT_S), application.log


async def arrived(bus: InMemoryEventBus, count: int) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while bus.event_count < count:  # noqa: ASYNC110 - a bus tells nobody but its handlers
            await asyncio.sleep(0.01)


def _drop_trigger(database: Database, table: str) -> str:
    where = f" ON {table}" if database.dialect == "postgresql" else ""
    return f"DROP TRIGGER refuse{where}"


def _ask_for_debts(connection: Any, _record: object) -> None:
    connection.cursor().execute("PRAGMA foreign_keys = ON")

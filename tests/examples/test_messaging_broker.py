"""The messaging example with a real RabbitMQ: the application, and its relay as another process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from outrider.testing.services import Services
from outrider.testing.services.servers.rabbitmq import RabbitMQ
from tests.support.brokers.rabbitmq_queues import messages_in
from tests.support.databases import DIALECTS, fresh
from tests.support.examples.messaging_client import Messaging, daily, group_message
from tests.support.examples.serving import MAX_WAIT_S, serving
from tests.support.processes.relay_process import RelayProcess
from tests.support.until import wait_until

RELAY = ("relay", "examples.messaging.relay:relay")
GROUPS, SCHEDULED = "group_message_processing", "scheduled_message_processing"


@pytest.fixture(scope="module")
def broker(services: Services) -> Iterator[RabbitMQ]:
    server = services.another("rabbitmq")
    assert isinstance(server, RabbitMQ)
    yield server
    server.stop()


@dataclass
class Stage:
    """A running application, an empty RabbitMQ, and no relay yet."""

    messaging: Messaging
    broker: RabbitMQ
    folder: Path

    @contextmanager
    def relay(self, **settings: str) -> Iterator[RelayProcess]:
        given = {
            "DATABASE_URL": self.messaging.database.url,
            "RABBITMQ_URL": self.broker.url,
            **settings,
        }
        relay = RelayProcess(given, self.folder / f"relay-{uuid4().hex[:6]}.log", RELAY)
        try:
            assert wait_until(lambda: relay.is_ready, MAX_WAIT_S), relay.text
            yield relay
            relay.terminate()
            assert wait_until(lambda: not relay.is_alive, MAX_WAIT_S), relay.text
        finally:
            relay.kill()

    def until_published(self) -> None:
        def done() -> bool:
            return all(event.status == "published" for event in self.messaging.events())

        assert wait_until(done, MAX_WAIT_S), [event[::2] for event in self.messaging.events()]

    def listed(self, what: str, *columns: str) -> list[list[str]]:
        """What rabbitmqctl knows, as rows."""
        command = (f"list_{what}", "-p", self.broker.name, "--silent", "--no-table-headers")
        return [line.split("\t") for line in self.broker.ctl(*command, *columns).splitlines()]

    async def taken(self, queue: str) -> list[AbstractIncomingMessage]:
        return await messages_in(self.broker.url, queue)


async def emptied(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for queue in (GROUPS, SCHEDULED, "messaging_audit", "messaging.dlq", "chatter.dlq"):
            await channel.queue_delete(queue)
        for exchange in ("messaging", "messaging.dlx", "chatter", "chatter.dlx"):
            await channel.exchange_delete(exchange)


@contextmanager
def on_stage(
    dialect: str, request: pytest.FixtureRequest, broker: RabbitMQ, folder: Path
) -> Iterator[Stage]:
    asyncio.run(emptied(broker.url))
    with ExitStack() as stack:
        database = stack.enter_context(fresh(dialect, request, folder))
        environment = {"DATABASE_URL": database.url, "RABBITMQ_URL": broker.url}
        application = stack.enter_context(serving("messaging", folder, environment))
        messaging = stack.enter_context(Messaging(application.url, database))
        yield Stage(messaging, broker, folder)


@pytest.fixture
def stage(request: pytest.FixtureRequest, broker: RabbitMQ, tmp_path: Path) -> Iterator[Stage]:
    dialect = getattr(request, "param", "postgresql")
    with on_stage(dialect, request, broker, tmp_path) as stage:
        yield stage


@pytest.mark.parametrize("stage", DIALECTS, indirect=True)
async def test_events_reach_the_queues_that_they_are_meant_for(stage: Stage) -> None:
    # given
    messaging = stage.messaging
    group = messaging.create("group", group_message(total_recipients=3))
    scheduled = messaging.create("scheduled", daily())

    # when
    with stage.relay(MESSAGING_AUDIT="1"):
        messaging.change("group", group, status="queued")
        messaging.change("scheduled", scheduled, status="cancelled")
        stage.until_published()

    # then
    groups, plans = await stage.taken(GROUPS), await stage.taken(SCHEDULED)
    assert [m.routing_key for m in groups] == ["group_message.created", "group_message.queued"]
    expected = ["scheduled_message.created", "scheduled_message.cancelled"]
    assert [m.routing_key for m in plans] == expected
    audit = {message.message_id for message in await stage.taken("messaging_audit")}
    assert audit == {message.message_id for message in groups + plans}
    assert await stage.taken("messaging.dlq") == []
    bodies = [json.loads(message.body) for message in groups]
    assert bodies == [event.payload for event in messaging.events(group)]


async def test_messages_are_persistent_json_with_the_id_and_the_headers_of_their_event(
    stage: Stage,
) -> None:
    # given
    made = stage.messaging.create("group", group_message())

    # when
    with stage.relay():
        stage.until_published()

    # then
    (message,) = await stage.taken(GROUPS)
    (row,) = stage.messaging.database.run("SELECT id, created_at FROM outbox_events")
    assert UUID(message.message_id) == row.id
    assert message.content_type == "application/json"
    assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert message.exchange == "messaging"
    headers = message.headers
    assert headers["event_type"] == "group_message.created"
    assert headers["aggregate_type"] == "group_message"
    assert headers["aggregate_id"] == made["id"]
    happened = [headers["created_at"], json.loads(message.body)["timestamp"]]
    assert len({datetime.fromisoformat(str(text)) for text in happened}) == 1


async def test_relay_declares_exchanges_queues_and_dead_letters_without_a_further_setting(
    stage: Stage,
) -> None:
    # when: it knows database and broker, and there is no event yet
    with stage.relay():
        exchanges = stage.listed("exchanges", "name", "type", "durable")
        queues = stage.listed("queues", "name", "durable", "arguments")
        bindings = stage.listed("bindings", "source_name", "destination_name", "routing_key")

    # then
    for exchange in ("messaging", "messaging.dlx"):
        assert [exchange, "topic", "true"] in exchanges
    arguments = {name: rest for name, durable, rest in queues if durable == "true"}
    assert arguments.keys() == {GROUPS, SCHEDULED, "messaging.dlq"}
    for queue in (GROUPS, SCHEDULED):
        assert '"x-dead-letter-exchange","messaging.dlx"' in arguments[queue]
    assert {tuple(binding) for binding in bindings if binding[0]} == {
        ("messaging", GROUPS, "group_message.*"),
        ("messaging", SCHEDULED, "scheduled_message.*"),
        ("messaging.dlx", "messaging.dlq", "#"),
    }


async def test_what_a_consumer_rejects_is_kept_as_a_dead_letter(stage: Stage) -> None:
    # given
    stage.messaging.create("group", group_message())
    with stage.relay():
        stage.until_published()

    # when
    async with await aio_pika.connect(stage.broker.url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue(GROUPS)
        rejected = await queue.get(timeout=30)
        await rejected.reject(requeue=False)

    # then
    (dead,) = await stage.taken("messaging.dlq")
    assert (dead.message_id, dead.body) == (rejected.message_id, rejected.body)
    assert await stage.taken(GROUPS) == []


def test_commit_wakes_up_a_relay_that_would_not_look_for_an_hour(stage: Stage) -> None:
    with stage.relay(OUTBOX_POLL_INTERVAL="3600") as relay:
        # given
        assert "(notified)" in relay.text

        # when, then
        stage.messaging.create("scheduled", daily())
        stage.until_published()


async def test_nothing_is_lost_while_rabbitmq_is_down_and_requests_go_on(stage: Stage) -> None:
    # given
    messaging, messages = stage.messaging, []
    with stage.relay() as relay:
        messages.append(messaging.create("group", group_message()))
        stage.until_published()
        stage.broker.own()
        stage.broker.kill()

        # when
        for _ in range(5):
            messages.append(message := messaging.create("group", group_message()))
            messaging.change("group", message, status="queued")
        messaging.change("group", messages[0], status="cancelled")
        assert wait_until(lambda: "sink unavailable" in relay.text, MAX_WAIT_S)
        waiting = [event for event in messaging.events() if event.status != "published"]
        assert len(waiting) == 11
        assert {(event.status, event.retry_count) for event in waiting} == {("pending", 0)}
        stage.broker.start()
        stage.until_published()

    # then: all there, in order, whatever may have come twice
    arrived: dict[str, list[str]] = {message["id"]: [] for message in messages}
    for message in await stage.taken(GROUPS):
        seen = arrived[str(message.headers["aggregate_id"])]
        if message.routing_key not in seen:
            seen.append(str(message.routing_key))
    for each in messages:
        assert arrived[each["id"]] == [event.type for event in messaging.events(each)]
    assert {event.retry_count for event in messaging.events()} == {0}


async def test_events_of_a_message_stay_in_order_with_two_relays_of_which_one_is_killed(
    stage: Stage,
) -> None:
    # given
    messaging = stage.messaging
    messages = [messaging.create("scheduled", daily()) for _ in range(12)]

    def switch(message: dict[str, Any]) -> None:
        for status in ("paused", "pending") * 5:
            messaging.change("scheduled", message, status=status)

    # when
    with stage.relay(OUTBOX_LEASE="2") as first, stage.relay(OUTBOX_LEASE="2") as second:
        with ThreadPoolExecutor(4) as clients:
            list(clients.map(switch, messages[:6]))
            first.kill()
            list(clients.map(switch, messages[6:]))
        stage.until_published()
        assert second.is_alive

    # then
    firsts: dict[str, list[str]] = {message["id"]: [] for message in messages}
    ids: set[str | None] = set()
    for received in await stage.taken(SCHEDULED):
        if received.message_id not in ids:
            ids.add(received.message_id)
            firsts[str(received.headers["aggregate_id"])].append(str(received.routing_key))
    for each in messages:
        assert firsts[each["id"]] == [event.type for event in messaging.events(each)]


async def test_refused_event_fails_with_an_alert_and_goes_out_once_a_person_sets_it_back(
    stage: Stage,
) -> None:
    # given: every event is larger than what may be sent
    database, url = stage.messaging.database, f"{stage.broker.url}?max_message_size=1"
    message = stage.messaging.create("group", group_message())
    settings = {"OUTBOX_MAX_RETRIES": "3", "OUTBOX_POLL_INTERVAL": "0.1"}
    with stage.relay(RABBITMQ_URL=url, **settings) as relay:

        def failed() -> bool:
            return [(e.status, e.retry_count) for e in stage.messaging.events()] == [("failed", 3)]

        assert wait_until(failed, MAX_WAIT_S), relay.text
        # The line is written after the row is settled.
        alert = "CRITICAL outrider.relay event failed"
        assert wait_until(lambda: relay.text.count(alert) == 1, MAX_WAIT_S), relay.text
        ((error,),) = database.run("SELECT last_error FROM outbox_events")
        assert error

    # when
    database.run("UPDATE outbox_events SET status = 'pending', retry_count = 0")
    with stage.relay():
        stage.until_published()

    # then
    (received,) = await stage.taken(GROUPS)
    assert received.headers["aggregate_id"] == message["id"]


def test_published_events_are_forgotten_after_the_days_that_were_set(stage: Stage) -> None:
    # given
    stage.messaging.create("group", group_message())
    young = stage.messaging.create("group", group_message())
    with stage.relay():
        stage.until_published()
    stage.messaging.database.run(
        "UPDATE outbox_events SET published_at = published_at - interval '3 days' "
        "WHERE position = (SELECT min(position) FROM outbox_events)"
    )

    # when
    with stage.relay(OUTBOX_CLEANUP_DAYS="2"):

        def left() -> list[str]:
            return [event.payload["id"] for event in stage.messaging.events()]

        # then
        assert wait_until(lambda: left() == [young["id"]], 2 * MAX_WAIT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_relay_in_good_order_with_nothing_in_hand(
    stage: Stage, number: signal.Signals
) -> None:
    # given
    messages = [stage.messaging.create("group", group_message()) for _ in range(60)]
    with stage.relay(OUTBOX_BATCH_SIZE="5") as relay:
        # when
        os.kill(relay.pid, number)
        assert wait_until(lambda: not relay.is_alive, MAX_WAIT_S)

        # then
        assert relay.exit_code == 0, relay.text
        published = sum(event.status == "published" for event in stage.messaging.events())
        left = len(messages) - published
        assert f"stopped after {published} events, {left} left" in relay.text
        ((owned,),) = stage.messaging.database.run(
            "SELECT count(*) FROM outbox_events_lanes WHERE owner IS NOT NULL"
        )
        assert owned == 0


async def test_settings_of_the_environment_reach_the_broker(stage: Stage) -> None:
    # given
    stage.messaging.create("group", group_message())

    # when
    with stage.relay(RABBITMQ_EXCHANGE="chatter"):
        stage.until_published()

    # then
    (received,) = await asyncio.wait_for(stage.taken(GROUPS), MAX_WAIT_S)
    assert received.exchange == "chatter"

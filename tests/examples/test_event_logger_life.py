"""The event logger's relay: requests do not wait for it, stopping it damages nothing, two share."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from examples.event_logger.app import create_app
from examples.event_logger.settings import Settings
from outrider import EventEnvelope
from outrider.stream import StreamPublisher
from tests.support.databases import DIALECTS, Database, fresh
from tests.support.examples.event_logger_client import Logger, ids, numbers_of, rows_in, texts
from tests.support.examples.serving import MAX_WAIT_S, Application, served, serving
from tests.support.until import wait_until

BACKLOG = 200

ACCEPTED = 'outbox_publish_attempts_total{outcome="accepted",sink="stream"}'
REFUSED = 'outbox_publish_attempts_total{outcome="refused",sink="stream"}'
PUBLISHED = 'outbox_published_events_total{event_type="message.sent",sink="stream"}'
RECORDED = 'outbox_recorded_events_total{event_type="message.sent"}'
LATENCY = 'outbox_delivery_latency_seconds_count{sink="stream"}'
DURATION = 'outbox_publish_duration_seconds_count{sink="stream"}'
PENDING = 'outbox_backlog_events{status="pending"}'
RETRYING = 'outbox_backlog_events{status="retrying"}'
FAILED = 'outbox_backlog_events{status="failed"}'
OLDEST = "outbox_backlog_oldest_age_seconds"


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        yield database


def settings_of(database: Database) -> Settings:
    return Settings.read({"DATABASE_URL": database.url})


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=MAX_WAIT_S) as http:
        yield http


async def send(http: httpx.AsyncClient, *sent: str, channel: str = "lobby") -> None:
    for text in sent:
        answer = await http.post("/messages", json={"channel": channel, "text": text})
        assert answer.status_code == 201, answer.text


async def without_relay(database: Database, count: int) -> None:
    """Messages that were answered while nothing was published."""
    app = create_app(settings_of(database))
    async with client_of(app) as http:
        await app.state.relay.stop()
        sent = [str(n) for n in range(count)]
        await asyncio.gather(*(send(http, *sent[n::5], channel=f"c{n}") for n in range(5)))


class Stuck(StreamPublisher):
    """A channel that takes what it is given, and says nothing for as long as it likes."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        self.asked.set()
        await self.answers.wait()


async def test_request_is_answered_while_the_stream_takes_for_ever(database: Database) -> None:
    # given: the relay waits for the stream
    stuck = Stuck()
    async with client_of(create_app(settings_of(database), stuck)) as http:
        await send(http, "1")
        async with asyncio.timeout(MAX_WAIT_S):
            await stuck.asked.wait()

        # when
        await send(http, "2", "3")

        # then
        assert [row.status for row in rows_in(database)] == ["pending"] * 3
        stuck.answers.set()
        async with Logger(str(http.base_url), database).stream(from_="start") as client:
            assert texts(await client.take(3)) == ["1", "2", "3"]


async def test_request_is_answered_while_the_relay_is_stopped_and_metrics_show_what_waits(
    database: Database,
) -> None:
    # given
    app = create_app(settings_of(database))
    async with client_of(app) as http:
        await app.state.relay.stop()

        # when
        await send(http, "1", "2", "3")

        # then
        assert [row.status for row in rows_in(database)] == ["pending"] * 3
        numbers = numbers_of((await http.get("/metrics")).text)
        assert numbers[PENDING] == numbers[RECORDED] == 3
        assert numbers[OLDEST] > 0
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["problems"]) == (503, ["OutboxRelay has ended"])


async def test_relay_starts_and_stops_with_the_application_and_open_streams_end_well(
    database: Database, tmp_path: Path
) -> None:
    # when
    environment = {"DATABASE_URL": database.url}
    with serving("event_logger", tmp_path, environment) as application:
        relays = database.run("SELECT name FROM event_outbox_relays")
        async with Logger(application.url, database).stream() as client:
            assert application.stop() in (0, -signal.SIGTERM), application.log
            await client.ended()
    log = application.log

    # then
    assert len(relays) == 1
    assert database.run("SELECT name FROM event_outbox_relays") == []
    assert database.run("SELECT lane FROM event_outbox_lanes WHERE owner IS NOT NULL") == []
    assert log.index("started:") < log.index("Application startup complete")
    assert log.index("stopped after") < log.index("Application shutdown complete")


async def test_metrics_count_successes_and_failures_and_show_what_waits_how_long(
    database: Database, tmp_path: Path
) -> None:
    # given
    environment = {"DATABASE_URL": database.url, "OUTBOX_MAX_RETRIES": "3"}
    async with AsyncExitStack() as stack:
        application = stack.enter_context(serving("event_logger", tmp_path, environment))
        logger = stack.enter_context(Logger(application.url, database))
        client = await stack.enter_async_context(logger.stream())
        logger.block("boom")

        # when
        logger.send_all(["a"], ["1", "2"])
        await client.take(2)
        logger.send("boom")

        # then: two are through, and one waits for another try
        seen: list[dict[str, float]] = []

        def one_waits() -> bool:
            seen.append(logger.numbers())
            return seen[-1][RETRYING] == 1

        assert wait_until(one_waits, MAX_WAIT_S)
        waiting = seen[-1]
        assert waiting[RECORDED] == 3
        assert waiting[ACCEPTED] == waiting[PUBLISHED] == waiting[LATENCY] == 2
        assert waiting[DURATION] >= 2
        assert waiting[PENDING] == 1
        assert waiting[OLDEST] > 0

        # and when it has failed, nothing waits any more
        logger.eventually_fails("lobby")
        assert wait_until(lambda: logger.numbers()[REFUSED] == 3, MAX_WAIT_S)
        over = logger.numbers()
        assert (over[PENDING], over[RETRYING], over[OLDEST], over[FAILED]) == (0, 0, 0, 1)

        # and when it is repaired, it counts as a success
        logger.allow("boom")
        assert logger.retry() == 1
        await client.take(1)
        assert wait_until(lambda: logger.numbers()[PUBLISHED] == 3, MAX_WAIT_S)
        assert logger.numbers()[FAILED] == 0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_stop_in_the_middle_damages_nothing_and_the_next_start_delivers_the_rest(
    database: Database, tmp_path: Path, ending: signal.Signals
) -> None:
    # given
    await without_relay(database, BACKLOG)
    slowly = {"DATABASE_URL": database.url, "OUTBOX_BATCH_SIZE": "1", "OUTBOX_LEASE": "1"}

    # when: some are published, and most are not
    application = Application("event_logger", tmp_path, slowly)
    try:
        assert wait_until(lambda: published(database) > 0, MAX_WAIT_S), application.log
        assert application.stop(ending) in (0, -ending), application.log
    finally:
        application.kill()

    # then: each row is what it was, or published, and none in between
    states = Counter(
        (row.status, row.retry_count, row.delivery_number is not None) for row in rows_in(database)
    )
    assert states.keys() == {("pending", 0, False), ("published", 0, True)}

    # and everything arrives, once, and in the order of its channel
    with (
        serving("event_logger", tmp_path, slowly) as again,
        Logger(again.url, database) as logger,
    ):
        async with logger.stream(from_="start") as client:
            messages = await client.take(BACKLOG)
    assert [message.id for message in messages] == list(range(1, BACKLOG + 1))
    assert set(ids(messages)) == {row.id for row in rows_in(database)}
    for n in range(5):
        expected = [str(each) for each in range(n, BACKLOG, 5)]
        assert texts(messages, f"c{n}") == expected


async def test_refused_message_that_is_accepted_later_is_not_overtaken_in_its_channel(
    database: Database, tmp_path: Path
) -> None:
    # given: both are in the same batch, and the first is refused
    app = create_app(settings_of(database))
    async with client_of(app) as http:
        await app.state.relay.stop()
        assert (await http.put("/blocked-words/boom")).status_code == 204
        await send(http, "boom", "after it")
    with (
        serving("event_logger", tmp_path, {"DATABASE_URL": database.url}) as application,
        Logger(application.url, database) as logger,
    ):
        assert wait_until(lambda: rows_in(database)[0].retry_count > 0, MAX_WAIT_S)

        # when
        logger.allow("boom")

        # then
        async with logger.stream(from_="start") as client:
            assert texts(await client.take(2)) == ["boom", "after it"]


@contextmanager
def two_processes(database: Database, folder: Path) -> Iterator[list[Application]]:
    """Both started at once, on a database without tables."""
    environment = {"DATABASE_URL": database.url, "OUTBOX_POLL_INTERVAL": "1"}
    with ExitStack() as stack:
        both = [Application("event_logger", folder, environment) for _ in range(2)]
        for application in both:
            stack.callback(application.kill)
        for application in both:
            assert wait_until(lambda a=application: a.is_ready, MAX_WAIT_S), application.log
        yield both


async def test_two_web_processes_share_the_work_and_publish_no_row_twice(
    database: Database, tmp_path: Path
) -> None:
    # given
    async with AsyncExitStack() as stack:
        both = stack.enter_context(two_processes(database, tmp_path))
        assert wait_until(lambda: set(lanes(database)) == {32}, MAX_WAIT_S)
        loggers = [stack.enter_context(Logger(each.url, database)) for each in both]
        clients = [await stack.enter_async_context(logger.stream()) for logger in loggers]

        # when
        sent = [str(n) for n in range(5)]
        for number, logger in enumerate(loggers):
            logger.send_all([f"c{number}-{n}" for n in range(10)], sent)

        # then: the clients of both see everything once, in order
        for client in clients:
            messages = await client.take(100)
            assert [message.id for message in messages] == list(range(1, 101))
            assert set(ids(messages)) == {row.id for row in rows_in(database)}
            for channel in {row.channel for row in rows_in(database)}:
                assert texts(messages, channel) == sent

        # and each event was published by one of the two
        for application in both:
            assert application.stop() in (0, -signal.SIGTERM), application.log
        by_each = [re.findall(r"event published .*event_id=(\S+)", each.log) for each in both]
        assert all(by_each)
        assert sorted(by_each[0] + by_each[1]) == sorted(str(row.id) for row in rows_in(database))


def published(database: Database) -> int:
    return sum(row.status == "published" for row in rows_in(database))


def lanes(database: Database) -> list[int]:
    """How many each relay has."""
    rows = database.run(
        "SELECT count(*) FROM event_outbox_lanes WHERE owner IS NOT NULL GROUP BY owner"
    )
    return [row[0] for row in rows]

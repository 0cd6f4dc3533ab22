"""The event logger over HTTP, on SQLite and on PostgreSQL: its stream, and what failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from uuid import UUID

import pytest

from tests.support.databases import DIALECTS, fresh
from tests.support.examples.event_logger_client import Logger, ids, rows_in, texts
from tests.support.examples.serving import MAX_WAIT_S, Application, fuzz, serving
from tests.support.until import wait_until

_numbers = count(1)


@pytest.fixture(scope="module", params=DIALECTS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Application, Logger]]:
    folder = tmp_path_factory.mktemp("event_logger")
    with ExitStack() as stack:
        database = stack.enter_context(fresh(request.param, request, folder))
        environment = {"DATABASE_URL": database.url, "OUTBOX_MAX_RETRIES": "3"}
        application = stack.enter_context(serving("event_logger", folder, environment))
        yield application, stack.enter_context(Logger(application.url, database))


@pytest.fixture
def logger(running: tuple[Application, Logger]) -> Logger:
    return running[1]


@pytest.fixture
def channel() -> str:
    """One that no other test has written to."""
    return f"channel-{next(_numbers)}"


async def test_messages_arrive_by_sse_once_and_in_the_order_of_their_channel(
    logger: Logger, channel: str
) -> None:
    # given
    channels, sent = [f"{channel}-{n}" for n in range(3)], [f"text {n}" for n in range(10)]
    async with logger.stream() as client:
        # when
        logger.send_all(channels, sent)
        messages = await client.take(30)

    # then
    assert {message.type for message in messages} == {"message.sent"}
    for each in channels:
        assert texts(messages, each) == sent
    numbers = [message.id for message in messages]
    assert numbers == list(range(numbers[0], numbers[0] + 30))
    assert len(set(ids(messages))) == 30


async def test_client_that_was_away_resumes_without_gap_or_repeat(
    logger: Logger, channel: str
) -> None:
    # given
    async with logger.stream() as client:
        logger.send_all([channel], ["1", "2", "3"])
        before = await client.take(2)

    # when: the connection was lost before the third, and more has happened since
    logger.send_all([channel], ["4", "5"])
    async with logger.stream(before[-1].id) as client:
        missed = await client.take(3)
        logger.send("6", channel)
        live = await client.take(1)

    # then
    assert texts([*before, *missed, *live]) == ["1", "2", "3", "4", "5", "6"]


async def test_published_event_carries_the_id_of_its_row(logger: Logger, channel: str) -> None:
    # when
    async with logger.stream(aggregate_id=channel) as client:
        message = logger.send("hello", channel)
        (event,) = await client.take(1)

    # then
    row = logger.row(channel)
    assert UUID(event.data["id"]) == UUID(event.data["data"]["event_id"]) == row.id
    assert event.id == row.delivery_number
    assert event.data["data"]["message_id"] == message["id"]


def test_refused_event_keeps_count_and_reason_waits_longer_each_time_and_then_fails(
    running: tuple[Application, Logger], channel: str
) -> None:
    # given
    application, logger = running
    logger.block("apple")

    # when
    logger.send("an Apple a day", channel)

    # then: it waits for another try
    waiting = logger.eventually_waits(channel)
    assert waiting.last_error == "the message has a blocked word"
    assert waiting.next_retry_at is not None
    assert logger.failed(channel) == []

    # and has failed when its attempts have run out
    row = logger.eventually_fails(channel)
    assert (row.retry_count, row.last_error) == (3, "the message has a blocked word")
    assert (row.next_retry_at, row.delivery_number) == (None, None)
    first, second = re.findall(rf"next try in (\S+) s .*{row.id}", application.log)
    assert float(first) < float(second)
    (seen,) = logger.failed(channel)
    assert UUID(seen["event_id"]) == row.id
    assert (seen["retry_count"], seen["last_error"]) == (3, row.last_error)


async def test_failed_event_is_delivered_when_somebody_asks_for_another_try(
    logger: Logger, channel: str
) -> None:
    # given
    logger.block("banana")
    logger.send("banana", channel)
    event = logger.eventually_fails(channel)

    # when
    logger.allow("banana")
    async with logger.stream(aggregate_id=channel) as client:
        retried = logger.retry(event_id=str(event.id))
        messages = await client.take(1)

    # then
    assert retried == 1
    assert (ids(messages), texts(messages)) == ([event.id], ["banana"])
    assert logger.row(channel).status == "published"
    assert logger.failed(channel) == []


async def test_another_try_while_the_fault_lasts_costs_all_attempts_again(
    logger: Logger, channel: str
) -> None:
    # given
    logger.block("cherry")
    logger.send("cherry", channel)
    event = logger.eventually_fails(channel)

    # when
    assert logger.retry(event_id=str(event.id)) == 1

    # then
    logger.eventually_waits(channel)
    assert logger.eventually_fails(channel).retry_count == 3


async def test_refused_event_holds_back_its_own_channel_and_no_other(
    logger: Logger, channel: str
) -> None:
    # given
    logger.block("damson")
    async with logger.stream(aggregate_id=[channel, f"{channel}-b"]) as client:
        # when
        logger.send("a damson", channel)
        event = logger.row(channel)
        logger.send("after it", channel)
        logger.send("elsewhere", f"{channel}-b")

        # then: what follows comes when the refused one has failed, and that one after its repair
        assert texts(await client.take(2)) == ["elsewhere", "after it"]
        logger.allow("damson")
        assert logger.retry(event_id=str(event.id)) == 1
        assert texts(await client.take(1)) == ["a damson"]


def test_all_that_failed_is_retried_at_once_and_nothing_else(logger: Logger, channel: str) -> None:
    # given
    logger.block("elder")
    for number in range(2):
        logger.send("elder", f"{channel}-{number}")
    for number in range(2):
        logger.eventually_fails(f"{channel}-{number}")
    failed = [row for row in rows_in(logger.database) if row.status == "failed"]

    # when
    for word in logger.http.get("/blocked-words").json():
        logger.allow(word)
    retried = logger.retry()

    # then
    assert retried == len(failed) >= 2
    assert wait_until(
        lambda: {row.status for row in rows_in(logger.database)} == {"published"}, MAX_WAIT_S
    )
    assert logger.retry() == 0


def test_nothing_that_is_sent_makes_the_server_fail(logger: Logger) -> None:
    # when
    problems = fuzz(logger.url)

    # then
    assert problems == ""
    assert logger.http.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"channel": "lobby", "text": "\\u0000"}',
        b'{"channel": "lobby", "text": "\\ud800"}',
        b'{"channel": "lobby", "text": NaN}',
        b'{"channel": "Lobby", "text": "x"}',
        b'{"channel": "lobby", "text": " "}',
        b'{"channel": "lobby", "text": "x", "more": 1}',
        b"\xff",
    ],
)
def test_bad_message_is_refused_with_a_reason_and_leaves_nothing(
    logger: Logger, body: bytes
) -> None:
    # given
    before = len(rows_in(logger.database))

    # when
    answer = logger.http.post(
        "/messages", content=body, headers={"Content-Type": "application/json"}
    )

    # then
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]
    assert len(rows_in(logger.database)) == before

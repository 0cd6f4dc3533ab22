"""The event logger over HTTP, on SQLite and on PostgreSQL: its stream, its failures, its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from uuid import UUID

import pytest

from outrider.testing.services.server import wait_until
from tests.examples.event_logger_client import Logger, ids, rows_in, texts
from tests.examples.serving import PATIENCE, fuzz, serving
from tests.integration.databases import DIALECTS, fresh

ACCEPTED = 'outbox_publish_attempts_total{outcome="accepted",sink="stream"}'
REFUSED = 'outbox_publish_attempts_total{outcome="refused",sink="stream"}'
PUBLISHED = 'outbox_published_events_total{event_type="message.sent",sink="stream"}'
RECORDED = 'outbox_recorded_events_total{event_type="message.sent"}'
LATENCY = 'outbox_delivery_latency_seconds_count{sink="stream"}'
DURATION = 'outbox_publish_duration_seconds_count{sink="stream"}'
PENDING = 'outbox_backlog_events{state="pending"}'
RETRYING = 'outbox_backlog_events{state="retrying"}'
FAILED = 'outbox_backlog_events{state="failed"}'
OLDEST = "outbox_backlog_oldest_age_seconds"

_numbers = count(1)


@pytest.fixture(scope="module", params=DIALECTS)
def logger(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Logger]:
    folder = tmp_path_factory.mktemp("event_logger")
    with ExitStack() as stack:
        database = stack.enter_context(fresh(request.param, request, folder))
        environment = {"DATABASE_URL": database.url, "OUTBOX_MAX_RETRIES": "3"}
        application = stack.enter_context(serving("event_logger", folder, environment))
        yield stack.enter_context(Logger(application.url, database))


@pytest.fixture
def channel() -> str:
    """One that no other test has written to."""
    return f"channel-{next(_numbers)}"


async def test_messages_arrive_by_sse_once_and_in_the_order_of_their_channel(
    logger: Logger, channel: str
) -> None:
    # given
    channels, sent = [f"{channel}-{n}" for n in range(3)], [f"text {n}" for n in range(10)]
    client = await logger.stream().open()

    # when
    logger.send_all(channels, sent)

    # then
    messages = await client.take(30)
    client.kill()
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
    client = await logger.stream().open()
    logger.send_all([channel], ["1", "2", "3"])
    before = await client.take(2)
    client.kill()

    # when: the connection was lost before the third, and more has happened since
    logger.send_all([channel], ["4", "5"])
    resumed = await logger.stream().open(last_event_id=before[-1].id)
    missed = await resumed.take(3)
    logger.send("6", channel)

    # then
    live = await resumed.take(1)
    resumed.kill()
    assert texts([*before, *missed, *live]) == ["1", "2", "3", "4", "5", "6"]


async def test_published_event_carries_the_id_of_its_row(logger: Logger, channel: str) -> None:
    # given
    client = await logger.stream(aggregate_id=channel).open()

    # when
    message = logger.send("hello", channel)

    # then
    (event,) = await client.take(1)
    client.kill()
    row = logger.row(channel)
    assert UUID(event.data["id"]) == UUID(event.data["data"]["event_id"]) == row.id
    assert event.id == row.delivery
    assert event.data["data"]["message_id"] == message["id"]


async def test_refused_event_keeps_count_and_reason_waits_longer_each_time_and_then_fails(
    logger: Logger, channel: str
) -> None:
    # given
    logger.block("apple")

    # when
    logger.send("an Apple a day", channel)

    # then: it waits for another try
    assert wait_until(lambda: logger.row(channel).retry_count == 1, PATIENCE)
    first = logger.row(channel)
    assert (first.status, first.last_error) == ("pending", "the message has a blocked word")
    assert first.next_retry_at is not None
    assert wait_until(lambda: logger.row(channel).retry_count == 2, PATIENCE)
    second = logger.row(channel)
    assert second.status == "pending"
    assert second.next_retry_at > first.next_retry_at

    # and has failed when the attempts have run out
    row = logger.eventually_fails(channel)
    assert (row.retry_count, row.last_error) == (3, "the message has a blocked word")
    assert (row.next_retry_at, row.delivery) == (None, None)
    (seen,) = logger.failed(channel)
    assert UUID(seen["id"]) == row.id
    assert (seen["retry_count"], seen["last_error"]) == (3, row.last_error)


async def test_failed_event_is_delivered_when_somebody_asks_for_another_try(
    logger: Logger, channel: str
) -> None:
    # given
    logger.block("banana")
    logger.send("banana", channel)
    event = logger.eventually_fails(channel)
    client = await logger.stream(aggregate_id=channel).open()

    # when
    logger.allow("banana")
    retried = logger.retry(event_id=str(event.id))

    # then
    messages = await client.take(1)
    client.kill()
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
    assert wait_until(lambda: logger.row(channel).status == "pending", PATIENCE)
    assert logger.eventually_fails(channel).retry_count == 3
    logger.allow("cherry")


async def test_refused_event_holds_back_its_own_channel_and_no_other(
    logger: Logger, channel: str
) -> None:
    # given
    logger.block("damson")
    client = await logger.stream(aggregate_id=[channel, f"{channel}-b"]).open()

    # when
    logger.send("a damson", channel)
    logger.send("after it", channel)
    logger.send("elsewhere", f"{channel}-b")

    # then: what follows comes when the refused one has failed, and that one after its repair
    assert texts(await client.take(2)) == ["elsewhere", "after it"]
    assert logger.row(channel).status == "published"
    logger.allow("damson")
    assert logger.retry() >= 1
    assert texts(await client.take(1)) == ["a damson"]
    client.kill()


async def test_metrics_show_what_waits_how_long_and_what_has_succeeded_and_failed(
    logger: Logger, channel: str
) -> None:
    # given
    before = logger.numbers()
    logger.block("elder")

    # when: one goes through, and one waits
    client = await logger.stream(aggregate_id=channel).open()
    logger.send("fine", channel)
    await client.take(1)
    logger.send("elder", channel)
    assert wait_until(lambda: logger.row(channel).retry_count == 1, PATIENCE)
    waiting = logger.numbers()

    # then
    assert waiting[PENDING] == waiting[RETRYING] == 1
    assert waiting[OLDEST] > 0
    assert waiting[RECORDED] == before.get(RECORDED, 0) + 2
    for name in (ACCEPTED, PUBLISHED, LATENCY):
        assert waiting[name] == before.get(name, 0) + 1
    assert waiting[DURATION] > before.get(DURATION, 0)

    # and when it has failed, it waits no more
    logger.eventually_fails(channel)
    assert wait_until(lambda: logger.numbers()[REFUSED] == before.get(REFUSED, 0) + 3, PATIENCE)
    after = logger.numbers()
    assert (after[PENDING], after[OLDEST]) == (0, 0)
    assert after[FAILED] == before[FAILED] + 1
    logger.allow("elder")
    assert logger.retry() == after[FAILED]
    await client.take(1)
    client.kill()


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

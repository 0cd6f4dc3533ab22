"""The live stream without a server or a database: text, filters, memory, cursors, outages."""

from __future__ import annotations

import asyncio
import os
import signal
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from outrider import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    EventEnvelope,
    EventId,
    EventMetadata,
)
from outrider import signals as s
from outrider.ports import EventPublisher
from outrider.stream import (
    Stream,
    StreamConfig,
    StreamFilter,
    StreamManager,
    StreamPublisher,
)
from outrider.stream.delivered import DeliveredEvent
from outrider.stream.frames import GAP, Frames, gap, keep_alive, message, opening
from outrider.stream.window import Item, Window
from tests.support.pages.sse import MAX_WAIT_S, Message, Parser
from tests.support.until import until

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRETS = EventMetadata(
    correlation_id="corr-1", user_id="user-1", trace_id="trace-1", traceparent="parent-1"
)
QUICK = StreamConfig(poll_interval=timedelta(milliseconds=10))


def envelope(
    n: int = 0, *, kind: str = "thing.happened", aggregate: str = "a", **more: Any
) -> EventEnvelope:
    metadata = more.pop("metadata", EventMetadata())
    aggregate_type = kind.partition(".")[0]
    payload = {"n": n, **more}
    return EventEnvelope(
        event_id=EventId.new(),
        event_type=kind,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate,
        occurred_at=NOW,
        payload=payload,
        metadata=metadata,
    )


class Table:
    """Deliveries that are kept in a list, in a database that can be away."""

    sink = "stream"

    def __init__(self) -> None:
        self.kept: list[DeliveredEvent] = []
        self.newest = 0
        self.away: BaseException | None = None
        self.reads = 0
        self.wake: Callable[[str], None] = lambda _word: None

    def deliver(self, *envelopes: EventEnvelope, wake: bool = True) -> None:
        for each in envelopes:
            self.newest += 1
            self.kept.append(DeliveredEvent(self.newest, each))
        if wake:
            self.wake("notify")

    def happen(self, *numbers: int, **more: Any) -> None:
        self.deliver(*[envelope(n, **more) for n in numbers])

    async def open(self, wake: Callable[[str], None], /) -> str:
        self.wake = wake
        return "list"

    async def after(self, delivery: int, limit: int, /) -> list[DeliveredEvent]:
        self._answer()
        self.reads += 1
        return [event for event in self.kept if event.delivery_number > delivery][:limit]

    async def bounds(self) -> tuple[int, int]:
        self._answer()
        return (self.kept[0].delivery_number if self.kept else self.newest + 1), self.newest

    async def close(self) -> None: ...

    def _answer(self) -> None:
        if self.away is not None:
            raise self.away


class Reader:
    """What a client has of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.parser, self._taken = stream, Parser(), 0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(MAX_WAIT_S):
            while not condition():
                self.parser.feed(await anext(self.stream))

    async def take(self, count: int) -> list[Message]:
        goal = self._taken + count
        await self.until(lambda: len(self.parser.messages) >= goal)
        taken, self._taken = self.parser.messages[self._taken : goal], goal
        return taken

    async def numbers(self, count: int) -> list[int]:
        return [message.n for message in await self.take(count)]


@pytest.fixture
def table() -> Table:
    return Table()


@asynccontextmanager
async def managing(table: Table, config: StreamConfig = QUICK) -> AsyncIterator[StreamManager]:
    async with StreamManager(table, config) as manager:
        yield manager


@asynccontextmanager
async def reading(
    manager: StreamManager, *wanted: Any, since: Any = "now"
) -> AsyncIterator[Reader]:
    async with aclosing(manager.connect(*wanted, since=since)) as stream:
        reader = Reader(stream)
        await reader.until(lambda: reader.parser.retry is not None)
        yield reader


def parsed(text: bytes) -> Parser:
    parser = Parser()
    parser.feed(text)
    assert parser.between_blocks
    return parser


def test_event_is_a_cloud_event_that_the_official_library_reads() -> None:
    sent = envelope(7, kind="order.placed", aggregate="o-1", note="größer")
    frames = Frames("shop", ("correlation_id",))

    text = frames.of(12, sent)

    (got,) = parsed(text).messages
    assert (got.id, got.type) == (12, "order.placed")
    data = text.partition(b"data: ")[2].rstrip()
    official = JSONFormat().read(CloudEvent, data)
    assert official.get_id() == str(sent.event_id)
    assert official.get_source() == "shop"
    assert official.get_subject() == "o-1"
    assert official.get_data() == {"n": 7, "note": "größer"}


def test_clients_see_no_user_and_no_trace_unless_told_so() -> None:
    sent = envelope(metadata=SECRETS)

    by_default = Frames("shop", StreamConfig().metadata).of(1, sent)
    asked_for = Frames("shop", ("user_id", "traceparent")).of(1, sent)

    assert b"corr-1" in by_default
    assert not any(word in by_default for word in (b"user-1", b"trace-1", b"parent-1"))
    assert b"user-1" in asked_for
    assert b"parent-1" in asked_for
    assert b"corr-1" not in asked_for


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_no_line_end_in_an_event_makes_a_field_of_its_own(end: str) -> None:
    kind = f"x{end}id: 99{end}data: forged"
    data = f'{{"text":{end}"id: 99"{end}}}'.encode()

    read = parsed(message(5, kind, data) + message(6, "next", b"{}"))

    assert [m.id for m in read.messages] == [5, 6]
    assert [m.type for m in read.messages] == ["message", "next"]
    assert read.messages[0].data == {"text": "id: 99"}


def test_texts_that_are_no_events_move_the_cursor_and_nothing_else() -> None:
    read = parsed(opening(2500, 3) + keep_alive(None) + keep_alive(8))

    assert (read.retry, read.last_event_id, read.comments) == (2500, 8, 2)
    assert read.messages == []


def test_gap_leads_to_the_oldest_that_is_kept() -> None:
    (told,) = parsed(gap(3, 101, 250)).messages

    assert (told.id, told.type) == (100, GAP)
    assert told.data == {"requested": 3, "oldest": 101, "newest": 250}


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (StreamFilter(), True),
        (StreamFilter(types=["order.*"]), True),
        (StreamFilter(types=["invoice.*", "order.placed"]), True),
        (StreamFilter(types=["invoice.*"]), False),
        (StreamFilter(aggregate_types=["order"], aggregate_ids=["o-1", "o-2"]), True),
        (StreamFilter(aggregate_types=["order"], aggregate_ids=["o-2"]), False),
        (StreamFilter(aggregate_types=["invoice"]), False),
        (StreamFilter(aggregate_ids=[]), False),
        (StreamFilter(types=[]), False),
    ],
)
def test_filter_passes_what_meets_every_condition(wanted: StreamFilter, passes: bool) -> None:
    assert wanted(envelope(kind="order.placed", aggregate="o-1")) is passes


@pytest.mark.parametrize("wrong", [{"types": "order.*"}, {"types": ["*.placed"]}, {"types": [""]}])
def test_filter_that_would_not_mean_what_it_says_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        StreamFilter(**wrong)


def test_problems_of_the_settings_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as refused:
        StreamConfig(keep_alive=timedelta(0), window=0, metadata=["user", "user_id"])

    assert str(refused.value) == (
        "StreamConfig: keep_alive must be above 0; window must be at least 1; "
        "metadata has no 'user'"
    )


async def test_publisher_accepts_everything() -> None:
    publisher = StreamPublisher()
    await publisher.open()

    await publisher.publish(envelope())
    await publisher.publish_all([envelope(n) for n in range(1000)])
    await publisher.close()
    await publisher.close()

    assert isinstance(publisher, EventPublisher)
    assert str(publisher) == "live stream"


async def test_new_client_sees_what_comes_from_now_on(table: Table) -> None:
    table.happen(1, 2)
    async with managing(table) as manager, reading(manager) as reader:
        table.happen(3)
        table.happen(4)

        got = await reader.take(2)

    assert [(m.id, m.n) for m in got] == [(3, 3), (4, 4)]


async def test_client_cut_off_before_its_first_event_misses_none(table: Table) -> None:
    table.happen(1, 2)
    async with managing(table) as manager:
        async with reading(manager) as reader:
            known = reader.parser.last_event_id
        table.happen(3)

        async with reading(manager, since=known) as again:
            assert await again.numbers(1) == [3]


@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("seen", [0, 1, 49, 50, 99, 100])
async def test_client_goes_on_where_it_was_and_joins_the_live_stream(
    table: Table, window: int, seen: int
) -> None:
    config = StreamConfig(window=window, batch_size=10, poll_interval=timedelta(milliseconds=10))
    async with managing(table, config) as manager:
        table.happen(*range(1, 101))
        await until(lambda: manager.window.newest == 100)

        async with reading(manager, since=seen) as reader:
            before = await reader.numbers(100 - seen)
            table.happen(101, 102)
            after = await reader.numbers(2)

    assert before + after == list(range(seen + 1, 103))


async def test_start_is_the_oldest_that_is_kept(table: Table) -> None:
    table.happen(*range(1, 11))
    del table.kept[:4]
    async with managing(table) as manager, reading(manager, since="start") as reader:
        assert await reader.numbers(6) == [5, 6, 7, 8, 9, 10]


async def test_resume_from_memory_reads_no_table(table: Table) -> None:
    async with managing(table, StreamConfig(poll_interval=timedelta(hours=1))) as manager:
        table.happen(*range(1, 51))
        await until(lambda: manager.window.newest == 50)
        await until(lambda: table.reads == 2)

        async with reading(manager, since=10) as reader:
            assert await reader.numbers(40) == list(range(11, 51))

    assert table.reads == 2


@pytest.mark.parametrize("kept", [5, 0])
async def test_client_is_told_what_was_forgotten_and_goes_on(table: Table, kept: int) -> None:
    table.happen(*range(1, 11))
    del table.kept[: 10 - kept]
    async with managing(table) as manager, reading(manager, since=2) as reader:
        (told,) = await reader.take(1)
        table.happen(11)
        rest = await reader.numbers(kept + 1)

    oldest = 11 - kept
    assert (told.type, told.id) == (GAP, oldest - 1)
    assert told.data == {"requested": 2, "oldest": oldest, "newest": 10}
    assert rest == list(range(oldest, 12))


async def test_what_is_forgotten_while_a_client_reads_is_told_too(table: Table) -> None:
    config = StreamConfig(batch_size=10, poll_interval=timedelta(milliseconds=10))
    table.happen(*range(1, 101))
    async with managing(table, config) as manager, reading(manager, since=0) as reader:
        await reader.take(10)
        del table.kept[:50]

        (told,) = await reader.take(1)

        assert told.data == {"requested": 10, "oldest": 51, "newest": 100}
        assert await reader.numbers(50) == list(range(51, 101))


async def test_numbers_that_were_never_used_are_no_gap(table: Table) -> None:
    table.happen(1, 2)
    table.newest += 5
    table.happen(3)
    async with managing(table) as manager, reading(manager, since=2) as reader:
        (got,) = await reader.take(1)

    assert (got.type, got.id, got.n) == ("thing.happened", 8, 3)


async def test_client_that_is_ahead_of_the_database_is_told(table: Table) -> None:
    table.happen(1, 2, 3)
    async with managing(table) as manager, reading(manager, since=900) as reader:
        table.happen(4)
        told, after = await reader.take(2)

    assert (told.type, told.id) == (GAP, 3)
    assert told.data == {"requested": 900, "oldest": 4, "newest": 3}
    assert after.n == 4


async def test_client_that_is_ahead_of_this_process_just_waits(table: Table) -> None:
    slow = StreamConfig(poll_interval=timedelta(milliseconds=200))
    async with managing(table, slow) as manager:
        table.deliver(*[envelope(n) for n in range(1, 6)], wake=False)

        async with reading(manager, since=4) as reader:
            assert await reader.numbers(1) == [5]


async def test_database_that_was_set_back_ends_streams_so_that_clients_are_told(
    table: Table,
) -> None:
    table.happen(*range(1, 11))
    async with managing(table) as manager:
        async with reading(manager) as reader:
            del table.kept[5:]
            table.newest = 5
            with pytest.raises(StopAsyncIteration):
                await reader.take(1)

        async with reading(manager, since=10) as again:
            table.happen(6)
            told, after = await again.take(2)

    assert told.data == {"requested": 10, "oldest": 6, "newest": 5}
    assert (after.id, after.n) == (6, 6)


async def test_each_client_sees_what_it_wants(table: Table) -> None:
    async with managing(table) as manager:
        mine, odd = StreamFilter(aggregate_ids=["mine"]), lambda e: e.payload["n"] % 2 == 1
        async with reading(manager, mine, odd) as reader, reading(manager) as other:
            for n in range(10):
                table.happen(n, aggregate="mine" if n < 6 else "yours")
            seen, all_of_them = await reader.numbers(3), await other.numbers(10)

    assert seen == [1, 3, 5]
    assert all_of_them == list(range(10))


async def test_what_a_client_wants_can_change_while_it_reads(table: Table) -> None:
    async with managing(table) as manager, reading(manager) as reader:
        table.happen(1)
        await reader.take(1)

        reader.stream.wanted = (StreamFilter(aggregate_ids=["b"]),)
        table.happen(2, aggregate="a")
        table.happen(3, aggregate="b")

        assert await reader.numbers(1) == [3]


async def test_silence_is_filled_and_moves_the_client_past_what_it_did_not_want(
    table: Table,
) -> None:
    config = StreamConfig(keep_alive=timedelta(milliseconds=20))
    nothing = StreamFilter(aggregate_ids=[])
    async with managing(table, config) as manager, reading(manager, nothing) as reader:
        table.happen(*range(1, 6))

        await reader.until(lambda: reader.parser.last_event_id == 5)
        await reader.until(lambda: reader.parser.comments >= 3)

    assert reader.parser.messages == []


@pytest.mark.parametrize("since", ["now", "start", 3, 99])
async def test_outage_of_the_database_keeps_streams_open(table: Table, since: Any) -> None:
    config = StreamConfig(
        keep_alive=timedelta(milliseconds=20), poll_interval=timedelta(milliseconds=10), window=1
    )
    told: list[s.Signal] = []
    manager = StreamManager(table, config, on_signal=told.append)
    table.happen(*range(1, 11))
    async with manager, aclosing(manager.connect(since=since)) as stream:
        reader = Reader(stream)
        table.away = DatabaseUnavailable("gone")
        await until(lambda: bool(told))
        assert manager.problem == "StreamManager: the database does not answer"
        table.happen(11)
        await reader.until(lambda: reader.parser.comments >= 3)

        table.away = None
        await until(lambda: manager.problem is None)
        await reader.until(lambda: len(reader.parser.messages) > 0)
        table.happen(12)
        await reader.until(lambda: reader.parser.last_event_id == 12)
    assert [type(signal) for signal in told] == [s.StoreUnavailable, s.StoreAvailable]


@pytest.mark.parametrize(
    "error", [ConfigurationError("no such table"), asyncio.CancelledError()], ids=repr
)
async def test_trouble_that_waiting_cannot_cure_ends_everything_and_is_told(
    table: Table, error: BaseException
) -> None:
    told: list[s.Signal] = []
    manager = StreamManager(table, QUICK, on_signal=told.append)
    await manager.start()
    async with reading(manager) as reader:
        table.away = error

        with pytest.raises(StopAsyncIteration):
            await reader.take(1)

    await until(lambda: manager.has_failed)
    assert manager.problem == "StreamManager has ended"
    assert [type(signal) for signal in told] == [s.ServiceFailed]
    with pytest.raises(BrokerUnavailable):
        manager.connect()
    with pytest.raises(ConfigurationError):
        await manager.stop()


async def test_stop_ends_all_streams_and_refuses_new_ones(table: Table) -> None:
    manager = StreamManager(table, StreamConfig(poll_interval=timedelta(hours=1)))
    await manager.start()
    async with reading(manager) as one, reading(manager) as two:
        waiting = [asyncio.create_task(reader.take(1)) for reader in (one, two)]
        await asyncio.sleep(0)

        await manager.stop()

        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [StopAsyncIteration, StopAsyncIteration]
        with pytest.raises(BrokerUnavailable):
            manager.connect()


async def test_streams_are_limited_and_make_room(table: Table) -> None:
    async with managing(table, StreamConfig(max_streams=2)) as manager:
        async with reading(manager), reading(manager):
            with pytest.raises(BrokerUnavailable):
                manager.connect()
            assert manager.streams == 2

        async with reading(manager):
            assert manager.streams == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_streams_and_reaches_who_handled_it_before(
    table: Table, number: signal.Signals
) -> None:
    heard: list[int] = []

    def handler(number: int, _frame: object) -> None:
        heard.append(number)

    before = signal.signal(number, handler)
    try:
        async with managing(table) as manager, reading(manager) as reader:
            os.kill(os.getpid(), number)

            with pytest.raises(StopAsyncIteration):
                await reader.take(1)

        assert heard == [number]
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


async def test_forged_wake_ups_cost_few_reads(table: Table) -> None:
    async with managing(table, StreamConfig(poll_interval=timedelta(hours=1))) as manager:
        started, clock = table.reads, asyncio.get_running_loop().time
        since = clock()
        for _ in range(2000):
            table.wake("notify")
            await asyncio.sleep(0)
        spent = clock() - since

        assert table.reads - started <= spent / 0.01 + 2
        assert manager.problem is None


@pytest.mark.parametrize(("most", "most_bytes"), [(10, 10**9), (10**9, 10 * 2600)])
def test_window_keeps_no_more_than_it_may_and_knows_where_it_begins(
    most: int, most_bytes: int
) -> None:
    window = Window(0, most, most_bytes)

    for n in range(1, 101):
        event = DeliveredEvent(n, envelope(n, text="x" * 1000))
        window.add([Item(event, lambda _delivery, _envelope: b"")])

    kept = window.after(window.start, 1000)
    assert kept is not None
    assert [item.delivery_number for item in kept] == list(range(91, 101))
    assert (window.start, window.newest) == (90, 100)
    assert window.after(89, 1000) is None


async def test_text_comes_in_portions(table: Table) -> None:
    async with managing(table) as manager, reading(manager, since=0) as reader:
        table.happen(*range(100), text="x" * 10_000)
        await until(lambda: manager.window.newest == 100)

        portions: list[bytes] = []
        while b"".join(portions).count(b"\n\n") < 100:
            portions.append(await anext(reader.stream))

    assert max(map(len, portions)) < 64 * 1024 + 11_000


class Endless(Table):
    """Events that exist only when they are asked for, so that nobody else keeps them."""

    async def after(self, delivery: int, limit: int, /) -> list[DeliveredEvent]:
        first, last = delivery + 1, min(self.newest, delivery + limit)
        return [
            DeliveredEvent(n, envelope(n, aggregate=f"a{n % 7}", text="x" * 10_000))
            for n in range(first, last + 1)
        ]


@pytest.mark.slow
async def test_memory_is_bounded_with_a_thousand_clients_that_take_nothing() -> None:
    table = Endless()
    config = StreamConfig(window=500, poll_interval=timedelta(milliseconds=10))
    async with managing(table, config) as manager:
        wanted = [StreamFilter(aggregate_ids=[f"a{n % 7}"]) for n in range(1000)]
        streams = [manager.connect(each) for each in wanted]
        for stream in streams:
            await anext(stream)
        tracemalloc.start()

        table.newest = 5000
        table.wake("notify")
        in_hand = await asyncio.gather(*[anext(stream) for stream in streams])
        await until(lambda: manager.window.newest == 5000)

        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for stream in streams:
            await stream.aclose()

    portion = 64 * 1024 + 11_000
    assert max(map(len, in_hand)) < portion
    # What each is being sent, what each has read of the table, and what all of them share.
    assert used < 1000 * 2 * portion + 500 * 2 * 11_000, f"{used:,} bytes"

"""How a relay starts without its sink, its database or room on the disk: it waits, and says so."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import create_async_engine

from outrider import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    DomainEvent,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
)
from outrider.observability.prometheus import PrometheusMetrics
from outrider.outcomes import ACCEPTED
from outrider.relay.outages import Outages
from outrider.signals import (
    RelayStarted,
    RelayStopped,
    SinkAvailable,
    SinkUnavailable,
    StoreAvailable,
    StoreUnavailable,
)
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.doubles import RecordingSink, SignalRecorder
from tests.support.limits import MAX_WAIT_S
from tests.support.until import until

QUICK = RelayConfig(poll_interval=timedelta(milliseconds=10))
PLACED = DomainEvent("order.placed", "order", 1, {})


async def test_sink_that_is_away_at_the_start_is_told_although_nothing_is_pending() -> None:
    # given
    broker, registry = MemoryBroker(), CollectorRegistry()
    signals = SignalRecorder(PrometheusMetrics(registry).on_signal)
    broker.stop()

    # when
    relay = OutboxRelay(MemoryOutboxStore(), broker.publisher(), QUICK, on_signal=signals)
    async with relay:
        await signals.until(lambda: bool(signals.of(SinkUnavailable)))

        # then
        assert signals.of(SinkUnavailable)[0].reason == "the memory broker is stopped"
        assert relay.problem == "sink default is unavailable"
        assert relay.problem_besides_broker is None
        assert registry.get_sample_value("outbox_sink_up", {"sink": "default"}) == 0

        broker.start()
        await signals.until(lambda: bool(signals.of(SinkAvailable)))
        assert relay.problem is None
        assert registry.get_sample_value("outbox_sink_up", {"sink": "default"}) == 1
    assert len(signals.of(SinkUnavailable)) == len(signals.of(SinkAvailable)) == 1


async def test_nothing_is_published_before_the_publisher_was_opened() -> None:
    # given
    class OpensLate(RecordingSink):
        opened = 0

        async def open(self) -> None:
            self.opened += 1
            if self.opened < 3:
                raise BrokerUnavailable("not yet")

    store, opened_at = MemoryOutboxStore(), []
    sink = OpensLate(lambda _: opened_at.append(sink.opened) or ACCEPTED)
    (row,) = store.record(PLACED)

    # when
    async with OutboxRelay(store, sink, QUICK):
        await until(lambda: row.status == "published")

    # then
    assert opened_at == [3]
    assert row.retry_count == 0


async def test_open_that_never_ends_does_not_hold_the_start() -> None:
    class NeverOpens(RecordingSink):
        async def open(self) -> None:
            await asyncio.Event().wait()

    signals = SignalRecorder()
    config = RelayConfig(publish_timeout=timedelta(milliseconds=20))
    async with OutboxRelay(MemoryOutboxStore(), NeverOpens(), config, on_signal=signals):
        await signals.until(lambda: bool(signals.of(SinkUnavailable)))

    assert signals.of(SinkUnavailable)[0].reason == "no answer within 0.02 s"


async def test_open_that_raises_an_error_of_the_network_is_repeated_until_the_sink_is_back() -> (
    None
):
    # given
    refusals = [ConnectionRefusedError(111, "secret")]

    class OpensLater(RecordingSink):
        async def open(self) -> None:
            if refusals:
                raise refusals.pop()

    # when
    signals = SignalRecorder()
    async with OutboxRelay(MemoryOutboxStore(), OpensLater(), QUICK, on_signal=signals):
        await signals.until(lambda: bool(signals.of(SinkAvailable)))

    # then
    (told,) = signals.of(SinkUnavailable)
    assert told.reason.startswith("the publisher raised ConnectionRefusedError at ")
    assert "secret" not in told.reason


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(ConnectionResetError(104, "secret"), 0), (FileNotFoundError(2, "no such file", "a.txt"), 1)],
)
async def test_network_error_of_a_publisher_costs_no_attempt_as_one_of_a_file_does(
    error: OSError, attempts: int
) -> None:
    # given
    store, signals, sink, errors = MemoryOutboxStore(), SignalRecorder(), RecordingSink(), [error]
    [row] = store.record(PLACED)

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    sink.before = fail_once

    # when
    async with OutboxRelay(store, sink, QUICK, on_signal=signals):
        await until(lambda: row.status == "published")

    # then
    assert row.retry_count == attempts
    assert len(signals.of(SinkUnavailable)) == 1 - attempts


async def test_publisher_that_returns_nothing_to_await_ends_its_relay_at_the_first_batch() -> None:
    # given
    store, sink, sent = MemoryOutboxStore(), RecordingSink(), []
    store.record(PLACED)
    sink.publish_all = sent.append  # type: ignore[method-assign, assignment]

    # when
    with pytest.raises(ConfigurationError, match="the publisher returned nothing to await: write"):
        async with asyncio.timeout(MAX_WAIT_S):
            await OutboxRelay(store, sink, QUICK).run()

    # then
    assert len(sent) == 1


async def test_sink_that_lets_clients_connect_and_accepts_nothing_is_not_called_available() -> None:
    # given
    signals, opened = SignalRecorder(), 0

    async def connect() -> None:
        nonlocal opened
        opened += 1

    outages = Outages("default", signals, asyncio.Event())
    watching = asyncio.create_task(outages.watch_sink(None, connect, quiet_s=0.5))

    # when
    for _ in range(2):  # a loop publishes again and again
        await outages.sink_is_down("accepts nothing")

    # then
    assert opened == 0
    await signals.until(lambda: bool(signals.of(SinkAvailable)))  # nothing is published any more
    assert opened == 1
    watching.cancel()


async def test_relay_that_is_stopped_before_the_database_answered_ends_without_an_error() -> None:
    # given
    store, signals = MemoryOutboxStore(), SignalRecorder()

    async def away(*_: object) -> Any:
        raise DatabaseUnavailable("away")

    store.open = store.release = away  # type: ignore[method-assign]
    relay = OutboxRelay(store, RecordingSink(), QUICK, on_signal=signals)
    running = asyncio.create_task(relay.run())
    await signals.until(lambda: bool(signals.of(StoreUnavailable)))

    # when
    await relay.stop()

    # then
    await running
    assert [signal.pending for signal in signals.of(RelayStopped)] == [None]
    assert not signals.of(RelayStarted)


async def test_sqlite_file_that_is_full_at_the_start_is_waited_for_and_named(
    tmp_path: Path,
) -> None:
    # given
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    await create_all(engine)
    first: Any = SqlOutboxStore(engine)
    await first.open(lambda _: None)
    await first.close()
    store: Any = SqlOutboxStore(engine)
    connect = store._connection._connect

    def connect_to_full_disk() -> sqlite3.Connection:
        db: sqlite3.Connection = connect()
        [(pages,)] = db.execute("PRAGMA page_count")
        db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    store._connection._connect = connect_to_full_disk
    config = RelayConfig(name="needs more than one page " * 1000)
    signals, sink = SignalRecorder(), RecordingSink()
    relay = OutboxRelay(store, sink, config, on_signal=signals)

    # when
    starting = asyncio.create_task(relay.start())
    await until(lambda: signals.of(StoreUnavailable) or starting.done())

    # then
    assert signals.of(StoreUnavailable)[0].reason == "SQLite: SQLITE_FULL"
    assert relay.problem == "the database is unavailable"
    room = "PRAGMA max_page_count = 1000000"
    await store._connection.write(lambda db: db.execute(room).fetchall())
    await starting
    await until(lambda: relay.problem is None)
    assert signals.of(StoreAvailable)
    await relay.stop()
    await engine.dispose()


async def test_sink_that_is_away_is_told_once_by_the_start_and_the_loops() -> None:
    # given
    store, signals, broker = MemoryOutboxStore(), SignalRecorder(), MemoryBroker()
    broker.stop()
    [row] = store.record(PLACED)

    # when
    async with OutboxRelay(store, broker.publisher(), QUICK, on_signal=signals):
        await signals.until(lambda: bool(signals.of(SinkUnavailable)))
        await asyncio.sleep(0.2)  # several attempts to connect and to publish
        broker.start()
        await until(lambda: row.status == "published")

    # then
    assert len(signals.of(SinkUnavailable)) == len(signals.of(SinkAvailable)) == 1
    assert row.retry_count == 0

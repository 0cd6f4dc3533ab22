"""Receivers of signals that raise: they change the outcome of nothing, and are told of once."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outrider import (
    DatabaseUnavailable,
    DomainEvent,
    EventConsumer,
    InMemoryEventBus,
    InProcessPublisher,
    Outbox,
    OutboxRelay,
    RelayConfig,
)
from outrider import signals as s
from outrider.observability.safe_signals import SafeSignals
from outrider.store.schema.tables import OutboxTables
from outrider.stream import StreamConfig, StreamManager
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.canary import CANARY
from tests.support.doubles import RecordingHandler
from tests.support.until import until

PLACED = DomainEvent("order.placed", "order", 1, {})
POLL = RelayConfig(poll_interval=timedelta(milliseconds=10))
SIGNALS = "outrider.signals"


def broken_receiver(_: s.Signal) -> None:
    raise LookupError(CANARY)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == SIGNALS]


async def test_relay_publishes_although_its_on_signal_raises() -> None:
    # given
    store, bus = MemoryOutboxStore(), InMemoryEventBus()
    store.record(PLACED)

    # when
    async with OutboxRelay(store, bus, POLL, on_signal=broken_receiver) as relay:
        await until(lambda: [row.status for row in store.rows] == ["published"])

        # then
        assert relay.problem is None


def test_commit_succeeds_although_on_signal_of_the_outbox_raises(tmp_path: Path) -> None:
    # given
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    tables = OutboxTables()
    tables.metadata.create_all(engine)
    outbox = Outbox(tables, on_signal=broken_receiver)

    # when
    with Session(engine) as session:
        session.connection()
        outbox.record(session, PLACED)
        session.commit()

        # then
        assert session.query(tables.outbox).count() == 1
    engine.dispose()


async def test_consumer_acknowledges_although_its_on_signal_raises() -> None:
    broker, handler = MemoryBroker(receive_wait=timedelta(milliseconds=10)), RecordingHandler()
    consumer = EventConsumer(
        broker.source(), [("order.placed", handler)], on_signal=broken_receiver
    )

    async with consumer:
        await broker.publisher().publish_all([PLACED.to_envelope()])
        await asyncio.wait_for(broker.handled(), 30)

    assert handler.calls == 1


async def test_in_process_handler_succeeds_although_on_signal_raises() -> None:
    handler = RecordingHandler()
    publisher = InProcessPublisher([("order.placed", handler)], on_signal=broken_receiver)

    await publisher.publish_all([PLACED.to_envelope()])

    assert handler.calls == 1


class AwayOnce:
    """Deliveries in a database that is away when it is asked first."""

    sink = "stream"

    def __init__(self) -> None:
        self.opened = 0

    async def open(self, _wake: Any, /) -> None:
        self.opened += 1
        if self.opened == 1:
            raise DatabaseUnavailable("away")

    async def bounds(self) -> tuple[int, int]:
        return 0, 0

    async def after(self, _number: int, _limit: int, /) -> list[Any]:
        return []

    async def close(self) -> None: ...


async def test_stream_outlives_an_outage_although_its_on_signal_raises() -> None:
    table: Any = AwayOnce()

    async with StreamManager(
        table, StreamConfig(on_signals=False), on_signal=broken_receiver
    ) as stream:
        assert stream.problem is None
    assert table.opened == 2


def test_each_kind_of_error_is_told_once_with_its_place_and_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signals = SafeSignals()

    with caplog.at_level(logging.ERROR, SIGNALS):
        for _ in range(3):
            signals.send(broken_receiver, s.SinkAvailable(sink="default"))
        signals.send(broken_receiver, s.StoreAvailable(sink="default"))

    assert len(lines(caplog)) == 2
    assert "SinkAvailable" in lines(caplog)[0]
    assert "LookupError at tests/unit/test_safe_signals.py:" in lines(caplog)[0]
    assert "in broken_receiver" in lines(caplog)[0]
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("error", "passes"),
    [(KeyboardInterrupt, True), (SystemExit, True), (asyncio.CancelledError, False)],
)
def test_only_what_ends_the_process_passes(error: type[BaseException], passes: bool) -> None:
    def interrupted(_: s.Signal) -> None:
        raise error

    raised = None
    try:
        SafeSignals().send(interrupted, s.SinkAvailable(sink="default"))
    except BaseException as seen:
        raised = seen

    assert (raised is not None) is passes

"""Sources that cancel themselves or ignore their cancellation: noticed, told, and bounded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from outrider import ConfigurationError, ConsumerConfig, DomainEvent, EventConsumer
from outrider.consumer import consumer as consumer_module
from outrider.signals import ConsumerStarted, ConsumerStopped, ServiceFailed, SourceUnavailable
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler, SignalRecorder
from tests.support.until import until

CONFIG = ConsumerConfig(grace=timedelta(milliseconds=20))


async def cancelled(*_: object) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize("call", ["receive", "acknowledge"])
async def test_source_that_raises_cancelled_error_ends_the_consumer_and_is_told(call: str) -> None:
    # given
    broker, signals = MemoryBroker(receive_wait=timedelta(milliseconds=10)), SignalRecorder()
    source: Any = broker.source()
    handlers = [("order.placed", RecordingHandler())]
    consumer = EventConsumer(source, handlers, CONFIG, on_signal=signals)
    await consumer.start()

    # when
    setattr(source, call, cancelled)
    placed = DomainEvent("order.placed", "order", 1, {})
    await broker.publisher().publish_all([placed.to_envelope()])
    await until(lambda: consumer.has_failed)

    # then
    [failed] = signals.of(ServiceFailed)
    assert "CancelledError at tests/unit/test_consumer_ends.py" in failed.reason
    with pytest.raises(ConfigurationError, match="nobody cancelled it"):
        await consumer.stop()


async def test_consumer_stops_while_its_broker_is_away() -> None:
    # given
    broker, signals = MemoryBroker(), SignalRecorder()
    broker.stop()
    handlers = [("order.placed", RecordingHandler())]
    consumer = EventConsumer(broker.source(), handlers, CONFIG, on_signal=signals)
    running = asyncio.create_task(consumer.run())
    await signals.until(lambda: bool(signals.of(SourceUnavailable)))

    # when
    await consumer.stop()

    # then
    await running
    assert signals.of(ConsumerStopped)


async def test_application_starts_while_the_broker_of_its_consumer_is_away() -> None:
    # given
    broker, signals, handler = MemoryBroker(), SignalRecorder(), RecordingHandler()
    broker.stop()
    consumer = EventConsumer(
        broker.source(), [("order.placed", handler)], CONFIG, on_signal=signals
    )

    # when
    async with asyncio.timeout(30), consumer:
        problem = consumer.problem
        broker.start()

        # then
        await signals.until(lambda: bool(signals.of(ConsumerStarted)))
    assert problem == "the broker is unavailable"
    assert len(signals.of(SourceUnavailable)) == 1


async def test_stop_ends_although_the_source_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setattr(consumer_module, "_CANCEL_TIMEOUT_S", 0.1)
    source: Any = MemoryBroker().source()
    let_go, signals = asyncio.Event(), SignalRecorder()

    async def receive(_limit: int) -> list[Any]:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        raise asyncio.CancelledError

    source.receive = receive
    handlers = [("order.placed", RecordingHandler())]
    consumer = EventConsumer(source, handlers, CONFIG, on_signal=signals)
    await consumer.start()

    # when, then
    try:
        async with asyncio.timeout(30):
            with pytest.raises(ConfigurationError, match="the source has ignored"):
                await consumer.stop()
        assert signals.of(ConsumerStopped)
    finally:
        let_go.set()
        await asyncio.sleep(0)

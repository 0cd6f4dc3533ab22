"""What is told of a failure: its place in the caller's code, and which attempt it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from outrider import (
    ConfigurationError,
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    ExponentialRetry,
    InProcessPublisher,
    OutboxRelay,
    RelayConfig,
)
from outrider import signals as s
from outrider.consumer.consumer import ConsumerConfig
from outrider.observability.failure_reason import MAX_REASON_CHARS, ErrorDetail
from outrider.outcomes import Refused
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.doubles import RecordingHandler, RecordingSink, SignalRecorder

CANARY = "canary-7b1"
SOON = ExponentialRetry(first=timedelta(milliseconds=1))
CONFIG = RelayConfig(poll_interval=timedelta(milliseconds=50), retry=SOON, max_retries=3)


def order() -> DomainEvent:
    return DomainEvent("order.placed", "order", 1, {})


async def missing(_: EventEnvelope) -> None:
    raise KeyError(CANARY)


class Raising(RecordingSink):
    """Breaks the contract of a publisher."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        raise KeyError(CANARY)


async def test_every_line_about_an_in_process_handler_has_the_number_of_the_attempt() -> None:
    store, watch = MemoryOutboxStore(), SignalRecorder()
    store.record(order())
    publisher = InProcessPublisher([("*", RecordingHandler(missing, "book"))], on_signal=watch)

    async with OutboxRelay(store, publisher, CONFIG, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))

    assert [signal.attempt for signal in watch.of(s.EventHandled)] == [1, 2, 3]
    told = watch.of(s.PublishRetried, s.EventFailed)
    assert [signal.attempt for signal in told] == [1, 2, 3]


async def test_log_and_row_say_where_a_handler_of_a_relay_failed() -> None:
    store, watch = MemoryOutboxStore(), SignalRecorder()
    (row,) = store.record(order())
    publisher = InProcessPublisher([("*", RecordingHandler(missing, "book"))], on_signal=watch)

    async with OutboxRelay(store, publisher, CONFIG, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))

    reasons = {signal.reason for signal in watch.of(s.EventHandled, s.EventFailed)}
    assert reasons == {row.last_error}
    assert str(row.last_error).startswith("book: KeyError at ")
    assert "test_told_failures.py:" in str(row.last_error)
    assert CANARY not in str(row.last_error)


async def test_log_and_row_say_where_a_publisher_of_the_user_failed() -> None:
    store, watch = MemoryOutboxStore(), SignalRecorder()
    (row,) = store.record(order())

    async with OutboxRelay(store, Raising(), CONFIG, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))

    assert str(row.last_error).startswith("the publisher raised KeyError at ")
    assert str(row.last_error).endswith(" in Raising.publish_all")
    assert CANARY not in str(row.last_error)


@pytest.mark.parametrize("detail", ["message", "traceback"])
@pytest.mark.parametrize("in_process", [True, False])
async def test_text_of_an_error_is_told_if_the_relay_is_set_so(
    detail: ErrorDetail, in_process: bool
) -> None:
    store, watch = MemoryOutboxStore(), SignalRecorder()
    (row,) = store.record(order())
    handlers = InProcessPublisher([("*", RecordingHandler(missing, "book"))], on_signal=watch)
    config = replace(CONFIG, error_detail=detail)

    async with OutboxRelay(store, handlers if in_process else Raising(), config, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))

    assert CANARY in str(row.last_error)
    assert ("loop.py" in str(row.last_error)) == (detail == "traceback" and not in_process)


async def test_reason_of_a_publisher_is_stored_as_one_short_line() -> None:
    store, watch = MemoryOutboxStore(), SignalRecorder()
    (row,) = store.record(order())

    async with OutboxRelay(
        store, RecordingSink(lambda _: Refused("a\x00b\n" + "x" * 100_000)), CONFIG, on_signal=watch
    ):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))

    assert str(row.last_error).startswith(r"a\x00b\nxxx")
    assert len(str(row.last_error)) <= MAX_REASON_CHARS


@pytest.mark.parametrize("detail", ["place", "message"])
async def test_dead_letter_says_where_its_handler_failed(detail: ErrorDetail) -> None:
    broker, watch = MemoryBroker(), SignalRecorder()
    await broker.publisher().publish(order().to_envelope())
    config = ConsumerConfig(retry=SOON, max_retries=3, error_detail=detail)

    async with EventConsumer(
        broker.source(), [("*", RecordingHandler(missing, "book"))], config, on_signal=watch
    ):
        await watch.until(lambda: bool(watch.of(s.EventDeadLettered)))

    assert [signal.attempt for signal in watch.of(s.EventHandled)] == [1, 2, 3]
    (dead,) = watch.of(s.EventDeadLettered)
    assert dead.reason.startswith("book: KeyError")
    assert "test_told_failures.py:" in dead.reason
    assert (CANARY in dead.reason) == (detail == "message")


@pytest.mark.parametrize("config", [RelayConfig, ConsumerConfig])
def test_error_detail_that_does_not_exist_is_refused(
    config: type[RelayConfig | ConsumerConfig],
) -> None:
    with pytest.raises(ConfigurationError, match="error_detail must be place or message or trace"):
        config(error_detail="all")  # type: ignore[arg-type]

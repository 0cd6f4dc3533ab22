"""Publishers that cancel themselves or ignore their cancellation: noticed, told, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from outrider import ConfigurationError, DomainEvent, OutboxRelay, RelayConfig
from outrider.brokers import ACCEPTED
from outrider.outcomes import Outcome
from outrider.relay import relay as relay_module
from outrider.signals import RelayStarted, ServiceFailed
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.doubles import RecordingSink, SignalRecorder
from tests.support.until import until

CONFIG = RelayConfig(
    lease=timedelta(seconds=1),
    poll_interval=timedelta(milliseconds=10),
    publish_timeout=timedelta(milliseconds=50),
    grace=timedelta(milliseconds=50),
    loops=1,
)


def placed(*numbers: int) -> list[DomainEvent]:
    return [DomainEvent("order.placed", "order", number, {"n": number}) for number in numbers]


class Stubborn(RecordingSink):
    """Ignores every cancellation until `let_go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go, self.began = asyncio.Event(), asyncio.Event()
        self.before = self._hang

    async def _hang(self) -> None:
        self.began.set()
        while not self.let_go.is_set():
            with suppress(asyncio.CancelledError):
                await self.let_go.wait()


@asynccontextmanager
async def stubborn() -> AsyncIterator[Stubborn]:
    """At the end the task that was left to itself may end."""
    sink = Stubborn()
    try:
        yield sink
    finally:
        sink.let_go.set()
        await asyncio.sleep(0)


def free_lanes(store: MemoryOutboxStore) -> int:
    return sum(lane.owner is None for lane in store._own.lanes)


@pytest.mark.fault("E13")
class Panic(BaseException):
    """What extensions raise that are written in Rust."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, Panic])
async def test_publisher_that_raises_no_exception_refuses_one_event_and_the_loop_goes_on(
    error: type[BaseException],
) -> None:
    # given
    def answer(envelope: Any) -> Outcome:
        if envelope.payload["n"] == 2:
            raise error
        return ACCEPTED

    store, sink = MemoryOutboxStore(), RecordingSink(answer)
    rows = store.record(*placed(1, 2, 3))

    # when
    async with OutboxRelay(store, sink, CONFIG) as relay:
        await until(lambda: rows[1].last_error and rows[2].status == "published")
        store.record(*placed(4))
        await until(lambda: sink.of(4) == [4])

        # then
        assert relay.problem is None
    assert rows[0].status == "published"
    reason = str(rows[1].last_error)
    assert reason.startswith(f"the publisher raised {error.__name__} at tests/")


@pytest.mark.fault("E12")
async def test_publisher_that_ignores_its_cancellation_ends_the_relay_which_says_why() -> None:
    # given
    store, signals = MemoryOutboxStore(), SignalRecorder()
    [row] = store.record(*placed(1))

    async with stubborn() as sink:
        relay = OutboxRelay(store, sink, CONFIG, on_signal=signals)
        await relay.start()

        # when
        await until(lambda: relay.has_failed)

        # then
        assert relay.problem == "OutboxRelay has ended"
        [failed] = signals.of(ServiceFailed)
        assert "the publisher has ignored its cancellation for 1 s" in failed.reason
        assert "restart" in failed.reason
        assert (free_lanes(store), row.status) == (64, "pending")
        with pytest.raises(ConfigurationError, match="ignored its cancellation"):
            await relay.stop()


@pytest.mark.fault("E12")
async def test_stop_ends_within_bounds_although_the_publisher_ignores_its_cancellation() -> None:
    # given
    config = RelayConfig(lease=timedelta(seconds=1), grace=timedelta(milliseconds=50))
    store = MemoryOutboxStore()
    store.record(*placed(1))

    async with stubborn() as sink:
        relay = OutboxRelay(store, sink, config)
        await relay.start()
        await sink.began.wait()

        # when, then
        async with asyncio.timeout(30):
            with pytest.raises(ConfigurationError, match="ignored its cancellation"):
                await relay.stop()
        assert free_lanes(store) == 64


async def cancelled(*_: object) -> Any:
    raise asyncio.CancelledError


async def test_close_that_never_ends_does_not_hold_a_relay_that_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NeverCloses(RecordingSink):
        async def close(self) -> None:
            await asyncio.Event().wait()

    # given
    monkeypatch.setattr(relay_module, "_CLOSE_TIMEOUT_S", 0.05)
    store: Any = MemoryOutboxStore()
    relay = OutboxRelay(store, NeverCloses(), CONFIG)
    await relay.start()

    # when
    store.claim = cancelled

    # then
    await until(lambda: relay.has_failed)


@pytest.mark.fault("R9")
@pytest.mark.parametrize("duty", ["lease", "claim", "settle"])
async def test_task_that_raises_cancelled_error_ends_the_relay_and_is_told(duty: str) -> None:
    # given
    store, signals = MemoryOutboxStore(), SignalRecorder()
    relay = OutboxRelay(store, RecordingSink(), CONFIG, on_signal=signals)
    await relay.start()

    # when
    setattr(store, duty, cancelled)
    store.record(*placed(1))
    await until(lambda: relay.has_failed)

    # then
    [failed] = signals.of(ServiceFailed)
    assert "nobody cancelled it, and yet it raised CancelledError at tests/unit" in failed.reason
    assert free_lanes(store) == 64
    with pytest.raises(ConfigurationError, match="CancelledError"):
        await relay.stop()


@pytest.mark.parametrize("call", [OutboxRelay.run, OutboxRelay.start])
async def test_cancelled_error_at_the_start_is_an_error_of_the_start(
    call: Callable[[OutboxRelay], Awaitable[None]],
) -> None:
    store: Any = MemoryOutboxStore()
    store.open = cancelled

    with pytest.raises(ConfigurationError, match="CancelledError"):
        await call(OutboxRelay(store, RecordingSink(), CONFIG))


async def test_relay_whose_run_was_cancelled_has_ended_and_not_failed() -> None:
    signals = SignalRecorder()
    relay = OutboxRelay(MemoryOutboxStore(), RecordingSink(), CONFIG, on_signal=signals)
    running = asyncio.create_task(relay.run())
    await signals.until(lambda: bool(signals.of(RelayStarted)))

    running.cancel()
    await asyncio.wait({running})

    assert (relay.problem, relay.has_failed) == ("OutboxRelay has ended", False)
    assert not signals.of(ServiceFailed)

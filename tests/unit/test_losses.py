"""Messages that a broker deleted before they were handled are told, logged and counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from outrider import EventConsumer
from outrider.consumer.losses import Loss
from outrider.observability import MessagesLost, log_signals
from outrider.observability.prometheus import PrometheusMetrics
from outrider.ports import Delivery
from outrider.signals import Signal
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler
from tests.support.until import until

HANDLERS = [("*", RecordingHandler())]
LOSS = Loss(
    first="shop/0/12", last="shop/0/273", count=262, reason="they expired; keep them longer"
)


class LosingSource:
    """A source of the broker in memory that notices losses."""

    def __init__(self, *losses: Loss) -> None:
        self._source, self._losses = MemoryBroker().source(), list(losses)

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def __str__(self) -> str:
        return "topic shop"

    def take_losses(self) -> list[Loss]:
        losses, self._losses = self._losses, []
        return losses

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        return await self._source.receive(limit)


def lost(count: int | None = 262) -> MessagesLost:
    return MessagesLost(
        consumer="billing",
        source="topic shop",
        first=LOSS.first,
        last=LOSS.last,
        count=count,
        reason=LOSS.reason,
    )


async def test_what_the_source_noticed_is_told_once_with_range_count_and_reason() -> None:
    told: list[Signal] = []
    source = LosingSource(LOSS)

    async with (
        asyncio.timeout(10),
        EventConsumer(source, HANDLERS, on_signal=told.append),  # type: ignore[arg-type]
    ):
        await until(lambda: any(isinstance(signal, MessagesLost) for signal in told))

    [signal] = [signal for signal in told if isinstance(signal, MessagesLost)]
    assert signal == MessagesLost(
        consumer="consumer",
        source="topic shop",
        first="shop/0/12",
        last="shop/0/273",
        count=262,
        reason="they expired; keep them longer",
    )


async def test_loss_that_is_noticed_while_the_consumer_stops_is_told_too() -> None:
    told: list[Signal] = []
    source = LosingSource()

    async with (
        asyncio.timeout(10),
        EventConsumer(source, HANDLERS, on_signal=told.append) as consumer,  # type: ignore[arg-type]
    ):
        consumer._stopping.set()
        source._losses.append(LOSS)

    assert sum(isinstance(signal, MessagesLost) for signal in told) == 1


@pytest.mark.parametrize(("count", "said"), [(262, "262"), (None, "an unknown number of")])
def test_log_says_at_error_what_is_lost_and_how_it_comes_back(
    caplog: pytest.LogCaptureFixture, count: int | None, said: str
) -> None:
    log_signals(lost(count))

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        f"the broker lost {said} messages of topic shop, from shop/0/12 to shop/0/273: "
        "they expired; keep them longer. "
        "`outrider replay` publishes them again, if the outbox still has them"
    )


def test_lost_messages_are_counted_and_an_unknown_number_counts_one() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)

    metrics.on_signal(lost())
    metrics.on_signal(lost(None))

    labels = {"consumer": "billing"}
    assert registry.get_sample_value("inbox_lost_messages_total", labels) == 263

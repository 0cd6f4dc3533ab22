"""Event buses: the same promises in memory and over Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outrider import (
    ConfigurationError,
    ConsumerConfig,
    DomainEvent,
    EventEnvelope,
    EventId,
    ExponentialRetry,
    InMemoryEventBus,
    PublishSubscribeBus,
)
from outrider.brokers import PublishFailed
from outrider.brokers.redis import RedisEventBus
from outrider.testing.services import Services
from tests.support.doubles import RecordingHandler
from tests.support.until import until

Bus = InMemoryEventBus | RedisEventBus
FEW_TRIES = ConsumerConfig(retry=ExponentialRetry(first=timedelta(milliseconds=1)))


@pytest.fixture(params=["memory", "redis"])
def make_bus(request: pytest.FixtureRequest) -> Callable[[], Bus]:
    if request.param == "memory":
        return InMemoryEventBus
    services: Services = request.getfixturevalue("services")
    stream = f"bus-{uuid4()}"
    return lambda: RedisEventBus(
        services.redis.url, stream, group="handlers", consumer=FEW_TRIES, on_signal=None
    )


def happened(event_type: str, aggregate_id: int = 1) -> EventEnvelope:
    return DomainEvent(event_type, "order", aggregate_id, {"n": aggregate_id}).to_envelope()


def types(handler: RecordingHandler) -> list[str]:
    return [envelope.event_type for envelope in handler.handled]


async def test_bus_brings_events_to_the_handlers_of_their_type_and_of_its_patterns(
    make_bus: Callable[[], Bus],
) -> None:
    bus = make_bus()
    port: PublishSubscribeBus = bus
    one, orders, everything, two = (RecordingHandler(name=name) for name in "abcd")
    port.subscribe("order.placed", one)
    port.subscribe("order.*", orders)
    port.subscribe("*", everything)
    port.subscribe_all(["order.paid", "parcel.sent"], two)

    async with bus:
        await port.publish(happened("order.placed"))
        await port.publish_all([happened("order.paid"), happened("parcel.sent")])
        await until(lambda: len(everything.handled) == 3)

    assert isinstance(bus, PublishSubscribeBus)
    assert types(everything) == ["order.placed", "order.paid", "parcel.sent"]
    assert types(one) == ["order.placed"]
    assert types(orders) == ["order.placed", "order.paid"]
    assert types(two) == ["order.paid", "parcel.sent"]


async def test_handler_that_several_patterns_name_is_called_once_with_the_whole_event(
    make_bus: Callable[[], Bus],
) -> None:
    bus, handler = make_bus(), RecordingHandler()
    bus.subscribe_all(["order.*", "*", "order.placed"], handler)
    sent = happened("order.placed").with_correlation_id("req-1").with_user_id("u-1")

    async with bus:
        await bus.publish(sent)
        await bus.publish(happened("order.paid"))
        await until(lambda: len(handler.handled) >= 2)

    assert handler.handled[0] == sent
    assert handler.calls == 2


async def test_handler_that_fails_does_not_prevent_the_others(make_bus: Callable[[], Bus]) -> None:
    bus, calls = make_bus(), []

    async def fail(_: EventEnvelope) -> None:
        calls.append("bad")
        raise ValueError

    async def note(_: EventEnvelope) -> None:
        calls.append("good")

    bus.subscribe("order.placed", RecordingHandler(fail, "bad"))
    bus.subscribe("order.placed", RecordingHandler(note, "good"))

    async with bus:
        with suppress(PublishFailed):  # in memory, the caller gets the failures
            await bus.publish(happened("order.placed"))
        await until(lambda: len(calls) >= 2)

    assert calls[:2] == ["bad", "good"]
    assert calls.count("good") == 1


async def test_event_of_another_producer_keeps_its_id(make_bus: Callable[[], Bus]) -> None:
    bus, handler = make_bus(), RecordingHandler()
    bus.subscribe("*", handler)
    given = EventEnvelope(
        event_id=EventId.from_string("test-id-123"),
        event_type="stock.counted",
        aggregate_type="stock",
        aggregate_id="1",
        occurred_at=datetime(2026, 1, 2, tzinfo=UTC),
    )

    async with bus:
        await bus.publish(given)
        await until(lambda: bool(handler.handled))

    assert str(handler.handled[0].event_id) == "test-id-123"


async def test_malformed_pattern_is_refused(make_bus: Callable[[], Bus]) -> None:
    with pytest.raises(ConfigurationError, match=r"'\*\.placed' is no pattern of event types"):
        make_bus().subscribe("*.placed", RecordingHandler())


async def test_bus_without_handlers_leaves_the_events_to_those_that_have_some(
    services: Services,
) -> None:
    url, stream, handler = services.redis.url, f"bus-{uuid4()}", RecordingHandler()
    sender = RedisEventBus(url, stream, group="handlers")
    receiver = RedisEventBus(url, stream, [("order.*", handler)], group="handlers")

    async with sender:
        await sender.publish(happened("order.placed"))
        assert sender.problem is None
        with pytest.raises(ConfigurationError, match="before the bus is opened"):
            sender.subscribe("order.*", handler)
        async with receiver:
            assert receiver.problem is None
            await until(lambda: len(handler.handled) == 1)

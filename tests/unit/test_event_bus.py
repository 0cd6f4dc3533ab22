"""An event bus over a broker: what it takes, how it is opened again, how it is shown."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import ConfigurationError, DomainEvent, InMemoryEventBus
from outrider.brokers.event_bus import BrokerEventBus, PublishSubscribeBus
from outrider.brokers.redis import RedisEventBus
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler
from tests.support.until import until

PLACED = DomainEvent("order.placed", "order", 1, {"total": 3})


def bus_over_a_broker() -> BrokerEventBus:
    broker = MemoryBroker()
    return BrokerEventBus(broker.publisher(), broker.source("billing"))


@pytest.mark.parametrize("make_bus", [InMemoryEventBus, bus_over_a_broker])
async def test_bus_takes_an_event_as_well_as_its_envelope(make_bus: Any) -> None:
    # given
    bus, handler = make_bus(), RecordingHandler()
    assert isinstance(bus, PublishSubscribeBus)
    bus.subscribe("order.*", handler)

    # when
    async with bus:
        await bus.publish(PLACED)
        await bus.publish_all([PLACED.to_envelope(), PLACED])
        await until(lambda: len(handler.handled) == 3)

    # then
    assert handler.handled == [PLACED.to_envelope()] * 3


@pytest.mark.parametrize("make_bus", [InMemoryEventBus, bus_over_a_broker])
async def test_bus_refuses_what_is_no_event(make_bus: Any) -> None:
    with pytest.raises(TypeError, match=r"expected an event, got dict: make one with DomainEvent"):
        await make_bus().publish({})


async def test_bus_that_is_opened_twice_goes_on_and_a_closed_one_says_what_to_do() -> None:
    # given
    bus, handler = bus_over_a_broker(), RecordingHandler()
    bus.subscribe("*", handler)

    # when
    async with bus:
        await bus.open()  # as a relay does while the broker is away
        await bus.publish(PLACED)
        await until(lambda: bool(handler.handled))

    # then
    with pytest.raises(
        ConfigurationError, match=r"closed bus .* cannot be opened again: make a new"
    ):
        await bus.open()


def test_bus_shows_where_it_sends_to_without_secrets() -> None:
    shown = repr(RedisEventBus("redis://:secret@localhost:6379/0", "bus", group="billing"))

    assert shown.startswith("<RedisEventBus ")
    assert "localhost" in shown
    assert "secret" not in shown

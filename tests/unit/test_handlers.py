"""`@handles`: which handler gets which event, and with what."""

from __future__ import annotations

from uuid import uuid4

import pytest

from outrider import (
    ConfigurationError,
    DecodeError,
    DomainEvent,
    EventEnvelope,
    EventHandler,
    EventMetadata,
    Handlers,
    InMemoryEventBus,
    handles,
)
from outrider.consumer.handlers import HANDLERS
from tests.support.shop import AccountOpened, OrderPlaced


def created() -> AccountOpened:
    return AccountOpened(account_id=uuid4(), email="a@example.org")


async def test_function_gets_the_typed_event() -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(AccountOpened)
    async def remember(event: AccountOpened) -> None:
        seen.append(event)

    event = created()
    await InMemoryEventBus(handlers).publish(event.to_envelope())

    assert seen == [event]
    assert [h.name for h in handlers.of("AccountOpened")] == [
        f"{__name__}.test_function_gets_the_typed_event.<locals>.remember"
    ]
    assert isinstance(handlers.of("AccountOpened")[0], EventHandler)


async def test_parameters_decide_what_is_handed_over() -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(AccountOpened)
    def plain(envelope: EventEnvelope, event: AccountOpened, metadata: EventMetadata) -> None:
        seen.append((envelope, event, metadata))

    event = created()
    envelope = event.to_envelope().with_user_id("u-1")
    await InMemoryEventBus(handlers).publish(envelope)

    assert seen == [(envelope, event, envelope.metadata)]


async def test_class_handler_is_made_anew_for_each_event() -> None:
    handlers, instances = Handlers(), []

    @handlers.handles(AccountOpened)
    class Welcome:
        def __init__(self) -> None:
            instances.append(self)

        async def handle(self, event: AccountOpened) -> None:
            assert event.email == "a@example.org"

    bus = InMemoryEventBus(handlers)
    await bus.publish(created().to_envelope())
    await bus.publish(created().to_envelope())

    assert len(set(instances)) == 2


async def test_one_handler_for_several_events() -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(AccountOpened, OrderPlaced)
    async def note(event: DomainEvent) -> None:
        seen.append(event.event_type)

    await InMemoryEventBus(handlers).publish(created().to_envelope())

    assert seen == ["AccountOpened"]
    assert [event_type for event_type, _ in handlers] == ["AccountOpened", "order.placed"]


def test_module_level_decorator_registers_and_returns_the_function() -> None:
    def react(event: AccountOpened) -> None: ...

    assert handles(AccountOpened)(react) is react
    assert HANDLERS.of("AccountOpened")[-1].name.endswith("react")
    assert HANDLERS.of("nobody.asked") == []


def test_what_is_no_event_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes event classes"):
        handles(str)  # type: ignore[arg-type]


def test_class_without_handle_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a method named handle"):

        @Handlers().handles(AccountOpened)
        class Nothing: ...


async def test_undecodable_event_is_a_decode_error_of_that_handler() -> None:
    handlers = Handlers()

    @handlers.handles(AccountOpened)
    async def never(event: AccountOpened) -> None:
        pytest.fail("called with an event that cannot be read")

    stranger = DomainEvent("AccountOpened", "account", 1, {"email": 5}).to_envelope()

    with pytest.raises(DecodeError, match="AccountOpened version 1"):
        await handlers.of("AccountOpened")[0].handle(stranger)


async def test_one_of_several_events_is_found_wherever_it_stands() -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(AccountOpened, OrderPlaced)
    async def remember(metadata: EventMetadata, event: AccountOpened | OrderPlaced) -> None:
        seen.append(event)

    event = created()
    await InMemoryEventBus(handlers).publish(event.to_envelope())

    assert seen == [event]

"""What a handler returns: a handler with a yield would do nothing, and never counts as done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any
from uuid import uuid4

import pytest

from outrider import ConfigurationError, EventEnvelope, Handlers, InMemoryEventBus
from outrider.brokers.in_process import InProcessPublisher
from outrider.consumer.handler_runner import HandlerMisbehaved, HandlerRunner
from outrider.consumer.inbox import IdempotentHandler, MemoryProcessedEvents
from outrider.consumer.subscriptions import Subscriptions
from outrider.observability.opentelemetry import TracedHandler
from outrider.ports import EventHandler
from tests.support.shop import AccountOpened

EVENT = AccountOpened(account_id=uuid4(), email="a@example.org").to_envelope()
FORGOTTEN: list[Coroutine[Any, Any, None]] = []


async def bill_and_yield(event: AccountOpened) -> AsyncIterator[int]:
    yield 1


def mail_and_yield(event: AccountOpened) -> Iterator[int]:
    yield 1


class Posts:
    name = "posts"

    async def handle(self, event: AccountOpened) -> AsyncIterator[int]:
        yield 1


async def bill(event: AccountOpened) -> None: ...


async def forgets_to_await(event: AccountOpened) -> object:
    FORGOTTEN.append(bill(event))
    return FORGOTTEN[-1]


@pytest.mark.parametrize("target", [bill_and_yield, mail_and_yield, Posts])
def test_handler_with_a_yield_is_refused_when_it_is_registered(target: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{target.__name__} has a yield.*: remove the y"):
        Handlers().handles(AccountOpened)(target)


def test_handler_object_with_a_yield_is_refused_when_it_subscribes() -> None:
    posts: Any = Posts()
    with pytest.raises(ConfigurationError, match=r"Posts\.handle has a yield.*: remove the yield"):
        Subscriptions([("*", posts)])


@pytest.mark.parametrize(
    "target",
    [lambda event: bill_and_yield(event), lambda event: mail_and_yield(event), forgets_to_await],
)
async def test_handler_whose_work_nobody_does_has_failed(target: Callable[..., object]) -> None:
    handlers = Handlers()
    handlers.handles(AccountOpened, name="lazy")(target)

    (failure,) = await HandlerRunner().deliver(EVENT, handlers.of("AccountOpened"))

    assert isinstance(failure.error, HandlerMisbehaved)
    assert failure.verdict == "count"
    assert failure.reason.startswith("lazy: HandlerMisbehaved: returned a ")
    for coroutine in FORGOTTEN:
        coroutine.close()


class PlainMethod:
    name = "plain"

    def __init__(self) -> None:
        self.seen: list[EventEnvelope] = []

    def handle(self, envelope: EventEnvelope, /) -> None:
        self.seen.append(envelope)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda handler: handler,
        lambda handler: IdempotentHandler(handler, MemoryProcessedEvents()),
        TracedHandler,
    ],
    ids=["bare", "idempotent", "traced"],
)
@pytest.mark.parametrize("sink", [InProcessPublisher, InMemoryEventBus])
async def test_handler_object_may_have_a_plain_method(
    sink: Callable[..., Any], wrap: Callable[[Any], EventHandler]
) -> None:
    handler = PlainMethod()
    await sink([("*", wrap(handler))]).publish(EVENT)

    assert handler.seen == [EVENT]

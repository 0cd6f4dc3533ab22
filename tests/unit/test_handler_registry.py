"""Which handlers a consumer or a relay calls: the default registry, and names that must differ."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from outrider import (
    ConfigurationError,
    EventConsumer,
    EventEnvelope,
    Handlers,
    InProcessPublisher,
    handles,
)
from outrider.consumer.handlers import HANDLERS
from outrider.consumer.subscriptions import Subscriptions
from outrider.events.patterns import overlap
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler
from tests.support.shop import AccountOpened, OrderPlaced
from tests.support.until import until


@pytest.fixture
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's registry without the handlers of other tests."""
    monkeypatch.setattr(HANDLERS, "_all", [])


def opened() -> EventEnvelope:
    return AccountOpened(account_id=uuid4(), email="a@example.org").to_envelope()


@pytest.mark.usefixtures("_registry")
async def test_publisher_without_handlers_calls_those_of_the_package_also_late_ones() -> None:
    seen: list[str] = []

    @handles(AccountOpened)
    async def early(event: AccountOpened) -> None:
        seen.append("early")

    publisher = InProcessPublisher()

    @handles(AccountOpened)
    async def late(event: AccountOpened) -> None:
        seen.append("late")

    await publisher.open()
    await publisher.publish(opened())

    assert seen == ["early", "late"]


@pytest.mark.usefixtures("_registry")
async def test_consumer_without_handlers_calls_those_of_the_package_and_its_own() -> None:
    seen: list[AccountOpened] = []
    handles(AccountOpened)(seen.append)
    broker, own, envelope = MemoryBroker(), RecordingHandler(), opened()
    consumer = EventConsumer(broker.source())
    consumer.subscribe("*", own)
    await broker.publisher().publish(envelope)

    async with consumer, asyncio.timeout(10):
        await until(lambda: bool(own.handled))

    assert (seen, own.handled) == ([envelope.to_event()], [envelope])


@pytest.mark.usefixtures("_registry")
async def test_given_handlers_are_the_only_ones() -> None:
    handles(AccountOpened)(lambda event: pytest.fail("its registry was not given"))
    given = RecordingHandler()
    publisher = InProcessPublisher([("AccountOpened", given)])

    await publisher.open()
    await publisher.publish(opened())

    assert given.calls == 1


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("handlers", [None, [], Handlers()], ids=["none", "list", "registry"])
async def test_opening_without_any_handler_is_refused_with_the_cure(handlers: Any) -> None:
    source = MemoryBroker().source()

    for open_ in (InProcessPublisher(handlers).open, EventConsumer(source, handlers).start):
        with pytest.raises(ConfigurationError, match=r"no handler .* import .* handlers="):
            await open_()


def plain_decorator(target: Callable[..., Any]) -> Callable[..., Any]:
    def inner(event: AccountOpened) -> Any:  # without functools.wraps
        return target(event)

    return inner


def test_wrapped_handlers_of_one_name_are_refused_naming_both_places() -> None:
    handlers = Handlers()

    @handlers.handles(AccountOpened)
    @plain_decorator
    def first(event: AccountOpened) -> None: ...

    with pytest.raises(ConfigurationError, match=r"functools\.wraps.*name=") as caught:

        @handlers.handles(AccountOpened)
        @plain_decorator
        def second(event: AccountOpened) -> None: ...

    places = {word.strip(",;") for word in str(caught.value).split() if f"{__name__}:" in word}
    assert len(places) == 2
    assert "plain_decorator.<locals>.inner" in str(caught.value)


def test_copied_handler_is_refused_and_works_under_a_name_of_its_own() -> None:
    handlers = Handlers()

    def make(tone: str) -> Callable[[AccountOpened], None]:
        def greet(event: AccountOpened) -> None:
            assert tone

        return greet

    handlers.handles(AccountOpened)(make("kind"))
    with pytest.raises(ConfigurationError, match="greet"):
        handlers.handles(AccountOpened)(make("cool"))
    handlers.handles(AccountOpened, name="greet-coolly")(make("cool"))

    names = [handler.name for handler in handlers.of("AccountOpened")]
    assert names == [f"{__name__}.{make.__qualname__}.<locals>.greet", "greet-coolly"]


async def test_function_registered_twice_is_called_once() -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(AccountOpened)
    @handlers.handles(AccountOpened)
    def note(event: AccountOpened) -> None:
        seen.append(event)

    await InProcessPublisher(handlers).publish(opened())

    assert len(seen) == 1


def test_one_name_for_different_event_types_is_fine() -> None:
    handlers = Handlers()

    @handlers.handles(AccountOpened)
    def _(event: AccountOpened) -> None: ...

    @handlers.handles(OrderPlaced)
    def _(event: OrderPlaced) -> None: ...

    assert len(Subscriptions(handlers).of("order.placed")) == 1


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("order.placed", "order.placed", True),
        ("order.placed", "order.paid", False),
        ("order.*", "order.placed", True),
        ("order.*", "order.item.*", True),
        ("order.*", "payment.*", False),
        ("order.*", "orders", False),
        ("*", "order.placed", True),
    ],
)
def test_patterns_overlap_if_one_event_type_fits_both(one: str, other: str, both: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is both


@pytest.mark.parametrize("pattern", ["order.placed", "order.*", "*"])
def test_subscribed_handlers_of_one_name_are_refused_if_one_event_would_meet_both(
    pattern: str,
) -> None:
    subscriptions = Subscriptions([("order.placed", RecordingHandler())])

    for subscribe in (
        lambda: subscriptions.subscribe(pattern, RecordingHandler()),
        lambda: subscriptions.subscribe_all([pattern], RecordingHandler()),
        lambda: Subscriptions(
            [("order.placed", RecordingHandler()), (pattern, RecordingHandler())]
        ),
    ):
        with pytest.raises(ConfigurationError, match="named 'handler'.*RecordingHandler"):
            subscribe()


async def test_handler_with_a_wildcard_and_an_exact_subscription_is_called_once() -> None:
    handler = RecordingHandler()
    publisher = InProcessPublisher([("*", handler), ("AccountOpened", handler)])

    await publisher.publish(opened())

    assert handler.calls == 1


def mistakes() -> Iterator[tuple[str, Callable[[], object], str]]:
    async def notify(event: AccountOpened) -> None: ...

    put_above = r"put @handles\(.*\) above it"
    yield "text", lambda: handles("order.placed"), r"event classes, not 'order.placed': import"  # type: ignore[arg-type]
    yield "no call", lambda: handles(notify), r"write @handles\(.*\) above notify"  # type: ignore[arg-type]
    yield "no call, class", lambda: handles(RecordingHandler), "above RecordingHandler"  # type: ignore[arg-type]
    yield "nothing", handles, r"@handles\(\) names no event class"
    yield "handlers=function", lambda: InProcessPublisher(handlers=notify), put_above  # type: ignore[arg-type]
    yield "list of functions", lambda: InProcessPublisher(handlers=[notify]), put_above  # type: ignore[list-item]
    yield "pair", lambda: InProcessPublisher([("x", notify)]), f"x: a function .* {put_above}"  # type: ignore[list-item]
    yield "class", lambda: InProcessPublisher([("x", RecordingHandler)]), "make an instance"  # type: ignore[list-item]
    yield "mapping", lambda: InProcessPublisher({"x": notify}), r"\.items\(\)"  # type: ignore[arg-type]
    yield "number", lambda: InProcessPublisher(5), "not int"  # type: ignore[arg-type]
    yield "nameless", lambda: handles(AccountOpened)(_Callable()), "_Callable has no name.*name="


class _Callable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, event: AccountOpened) -> Awaitable[None] | None: ...


async def test_callable_object_is_a_handler_under_a_given_name() -> None:
    handlers, seen = Handlers(), []

    class Note(_Callable):
        def __call__(self, event: AccountOpened) -> None:
            seen.append(event)

    handlers.handles(AccountOpened, name="note")(Note())
    await InProcessPublisher(handlers).publish(opened())

    assert len(seen) == 1


@pytest.mark.parametrize(
    ("make", "message"), [pytest.param(make, text, id=case) for case, make, text in mistakes()]
)
def test_first_mistake_with_handlers_is_answered_with_its_cure(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()

"""FastStream over real brokers: a message takes effect once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from faststream import AckPolicy, BaseMiddleware, StreamMessage
from faststream.exceptions import AckMessage
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from outrider import (
    ConfigurationError,
    DecodeError,
    DomainEvent,
    EventEnvelope,
    EventId,
    Outbox,
    create_all,
)
from outrider.admin import OutboxRepository
from outrider.consumer.inbox import CheckThenMark, MemoryProcessedEvents
from outrider.integrations.faststream import InboxMiddleware, InboxSession, envelope_of
from outrider.testing.services import Services
from tests.support.brokers.faststream_brokers import PLACES, Place, Rabbit
from tests.support.databases import create_database
from tests.support.inbox_shop import Invoice, Shop, placed
from tests.support.until import until


@pytest.fixture
async def shop(services: Services) -> AsyncIterator[Shop]:
    url = create_database(services).replace("postgresql", "postgresql+asyncpg", 1)
    made = Shop(create_async_engine(url))
    await create_all(made.engine)
    await made.open()
    yield made
    await made.engine.dispose()


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, services: Services) -> Place:
    made: Place = PLACES[request.param](services)
    await made.prepare()
    return made


class Seen:
    """What became of messages: one entry for each that is done with, its error or None."""

    def __init__(self) -> None:
        self.results: list[BaseException | None] = []

    def __call__(self, message: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        results = self.results

        class See(BaseMiddleware[Any, Any]):
            async def after_processed(
                self, kind: Any = None, error: BaseException | None = None, trace: Any = None
            ) -> bool:
                results.append(error)
                return False

        return See(message, context=context)

    async def wait_for(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.results) >= count

        await until(enough)


@asynccontextmanager
async def consuming(
    place: Place,
    handler: Callable[..., Any],
    inbox: InboxMiddleware,
    consumers: int = 1,
    **options: Any,
) -> AsyncIterator[Seen]:
    """FastStream at work, with so many connections."""
    seen = Seen()
    brokers = [place.broker([seen, inbox]) for _ in range(consumers)]
    for broker in brokers:
        place.subscribe(broker, handler, **options)
        await broker.start()
    try:
        yield seen
    finally:
        for broker in brokers:
            await broker.stop()


async def test_duplicates_take_effect_once(place: Place, shop: Shop) -> None:
    event = placed(7)

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        session.add(Invoice(order_id=body["order_id"]))

    async with consuming(place, send_invoice, InboxMiddleware(shop.inbox)) as seen:
        await place.send(event, event, placed(8), event)
        await seen.wait_for(4)

    assert await shop.state() == (2, 2)
    assert sorted(type(result).__name__ for result in seen.results) == [
        "AckMessage",
        "AckMessage",
        "NoneType",
        "NoneType",
    ]
    assert await mark_names(shop) == {
        f"{__name__}.test_duplicates_take_effect_once.<locals>.send_invoice"
    }


async def mark_names(shop: Shop) -> set[str]:
    async with shop.engine.connect() as connection:
        names = await connection.execute(text("SELECT handler_name FROM processed_events"))
        return set(names.scalars())


async def test_failed_message_is_not_marked_and_takes_effect_when_it_comes_again(
    place: Place, shop: Shop
) -> None:
    event, failures = placed(), 1

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        nonlocal failures
        session.add(Invoice(order_id=body["order_id"]))
        await session.flush()
        if failures:
            failures -= 1
            raise ValueError

    async with consuming(place, send_invoice, InboxMiddleware(shop.inbox)) as seen:
        await place.send(event)
        await seen.wait_for(1)
        await place.send(event)
        await seen.wait_for(2)

    assert await shop.state() == (1, 1)
    assert isinstance(seen.results[0], ValueError)


async def test_two_deliveries_at_once_take_effect_once(shop: Shop, services: Services) -> None:
    place, event, calls = Rabbit(services), placed(), 0
    await place.prepare()

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        nonlocal calls
        calls += 1
        session.add(Invoice(order_id=body["order_id"]))
        await session.flush()
        await until(shop.blocked)

    async with consuming(place, send_invoice, InboxMiddleware(shop.inbox), consumers=2) as seen:
        await place.send(event, event)
        await seen.wait_for(2)

    assert await shop.state() == (1, 1)
    assert calls == 1


async def test_recorded_events_commit_with_the_mark_and_name_their_cause(
    place: Place, shop: Shop
) -> None:
    outbox, event = Outbox(wake_up=False), placed().with_correlation_id("Grüße 1")

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        outbox.record(session, DomainEvent("invoice.sent", "invoice", body["order_id"], {}))

    async with consuming(place, send_invoice, InboxMiddleware(shop.inbox)) as seen:
        await place.send(event, event)
        await seen.wait_for(2)

    (sent,) = await OutboxRepository(shop.engine, outbox).fetch_unpublished(9)
    assert sent.metadata.causation_id == str(event.event_id)
    assert sent.metadata.correlation_id == "Grüße 1"


async def test_message_waits_for_a_database_that_is_away(shop: Shop, services: Services) -> None:
    place = Rabbit(services)
    await place.prepare()
    server = services.another("postgres")
    away = Shop(create_async_engine(server.url.replace("postgresql", "postgresql+asyncpg", 1)))
    await create_all(away.engine)
    await away.open()
    server.kill()
    tried = asyncio.Event()

    class Watched(CheckThenMark):
        def once(self, envelope: EventEnvelope, handler_name: str, /) -> Any:
            tried.set()
            return away.inbox.once(envelope, handler_name)

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        session.add(Invoice(order_id=body["order_id"]))

    inbox = InboxMiddleware(Watched(MemoryProcessedEvents()))
    async with consuming(place, send_invoice, inbox) as seen:
        await place.send(placed())
        await tried.wait()
        assert seen.results == []
        server.start()
        await seen.wait_for(1)

    assert seen.results == [None]
    assert await away.state() == (1, 1)
    await away.engine.dispose()
    server.stop()


async def test_handler_that_acknowledges_by_an_exception_takes_effect_once(
    shop: Shop, services: Services
) -> None:
    place, event = Rabbit(services), placed()
    await place.prepare()

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        session.add(Invoice(order_id=body["order_id"]))
        raise AckMessage

    async with consuming(place, send_invoice, InboxMiddleware(shop.inbox)) as seen:
        await place.send(event, event)
        await seen.wait_for(2)

    assert await shop.state() == (1, 1)


async def test_duplicate_is_acknowledged_also_if_handlers_do_that_by_hand(
    shop: Shop, services: Services
) -> None:
    place, event = Rabbit(services), placed()
    await place.prepare()
    messages: list[Any] = []

    async def send_invoice(body: dict[str, Any], session: InboxSession) -> None:
        session.add(Invoice(order_id=body["order_id"]))

    class Keep(BaseMiddleware[Any, Any]):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            messages.append(msg)
            return await call_next(msg)

    seen = Seen()
    broker = place.broker([seen, Keep, InboxMiddleware(shop.inbox)])
    place.subscribe(broker, send_invoice, ack_policy=AckPolicy.MANUAL)
    async with broker:
        await broker.start()
        await place.send(event, event)
        await seen.wait_for(2)
        assert sorted(str(message.committed) for message in messages) == ["AckStatus.ACKED", "None"]

    assert await shop.state() == (1, 1)


async def test_answer_is_published_once(shop: Shop, services: Services) -> None:
    place, event, answers = Rabbit(services), placed(), asyncio.Queue[Any]()
    await place.prepare()
    seen = Seen()
    broker = place.broker([seen, InboxMiddleware(shop.inbox, without_id="pass")])
    last = RabbitQueue(f"{place.name}-answers", auto_delete=True)

    @broker.publisher(last)
    async def send_invoice(body: dict[str, Any], session: InboxSession) -> str:
        session.add(Invoice(order_id=body["order_id"]))
        return "sent"

    async def answered(body: str) -> None:
        await answers.put(body)

    place.subscribe(broker, send_invoice)
    broker.subscriber(last)(answered)
    async with broker:
        await broker.start()
        await place.send(event, event)
        await seen.wait_for(3)
        await broker.publish("the end", last)
        async with asyncio.timeout(60):
            said = [await answers.get(), await answers.get()]

    assert said == ["sent", "the end"]
    assert await shop.invoices() == 1


@pytest.mark.parametrize("without_id", ["refuse", "pass"])
async def test_message_without_an_event_id_is_refused_or_passed_on(
    shop: Shop, services: Services, without_id: Any
) -> None:
    seen, got, subject = Seen(), [], f"no-id-{uuid4()}"
    inbox = InboxMiddleware(shop.inbox, without_id=without_id)
    broker = NatsBroker(services.nats.url, middlewares=[seen, inbox], logger=None)

    @broker.subscriber(subject)
    async def handle(body: str) -> None:
        got.append(body)

    async with broker:
        await broker.start()
        await broker.publish("hello", subject)
        await seen.wait_for(1)

    if without_id == "pass":
        assert (got, seen.results) == (["hello"], [None])
    else:
        assert got == []
        assert isinstance(seen.results[0], DecodeError)
        assert "hello" not in str(seen.results[0])
    assert await shop.marks() == 0


async def test_message_id_is_enough_and_needs_no_cloud_event(
    shop: Shop, services: Services
) -> None:
    queue, event_id, got = RabbitQueue(f"own-id-{uuid4()}", auto_delete=True), uuid4(), []
    seen = Seen()
    inbox = InboxMiddleware(shop.inbox)
    broker = RabbitBroker(services.rabbitmq.url, middlewares=[seen, inbox], logger=None)

    @broker.subscriber(queue)
    async def handle(body: str) -> None:
        got.append(body)

    async with broker:
        await broker.start()
        for _ in range(2):
            await broker.publish("hello", queue, message_id=str(event_id))
        await seen.wait_for(2)

    assert got == ["hello"]


async def test_inbox_without_a_transaction_serves_handlers_without_a_session(
    place: Place,
) -> None:
    event, got = placed(), []

    async def handle(body: dict[str, Any]) -> None:
        got.append(body)

    inbox = InboxMiddleware(CheckThenMark(MemoryProcessedEvents()))
    async with consuming(place, handle, inbox) as seen:
        await place.send(event)
        await seen.wait_for(1)
        await place.send(event)
        await seen.wait_for(2)

    assert [body["order_id"] for body in got] == [1]


def message(headers: dict[str, Any] | None = None, raw: Any = None, **more: Any) -> Any:
    return StreamMessage(raw, b"{}", headers=headers or {}, message_id=str(uuid4()), **more)


ID = UUID(int=7)


@pytest.mark.parametrize(
    ("headers", "raw"),
    [
        ({"ce-id": str(ID)}, None),
        ({"CE-ID": str(ID)}, None),
        ({"ce_id": str(ID)}, None),
        ({"ce-id": str(ID).encode()}, None),
        ({"message_id": str(ID)}, None),
        ({"ce-id": str(ID), "message_id": str(uuid4())}, None),
        ({}, SimpleNamespace(message_id=str(ID))),
        ({}, {"type": "stream", "data": {b"ce-id": str(ID).encode(), b"data": b"{}"}}),
    ],
)
def test_event_id_is_found_by_the_same_rules_for_all_brokers(headers: Any, raw: Any) -> None:
    found = envelope_of(message(headers, raw))

    assert found is not None
    assert found.event_id == ID


def test_id_of_another_producer_may_be_any_text() -> None:
    found = envelope_of(message({"ce-id": "42-1700", "ce-source": "/stock"}))

    assert found is not None
    assert found.event_id == EventId.from_string("42-1700", "/stock")
    assert str(found.event_id) == "42-1700"


@pytest.mark.parametrize("headers", [{}, {"ce-id": ""}, {"ce-type": "order.placed"}])
def test_id_that_faststream_made_up_is_no_event_id(headers: Any) -> None:
    assert envelope_of(message(headers)) is None


def test_batches_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one message at a time"):
        envelope_of(message(batch_headers=[{}, {}]))


async def test_middleware_that_hides_the_handler_is_a_configuration_error() -> None:
    inbox = InboxMiddleware(CheckThenMark(MemoryProcessedEvents()))
    once = inbox(None, context=SimpleNamespace())  # type: ignore[arg-type]

    async def somebody_elses_wrapper(_message: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="the last of the middlewares"):
        await once.consume_scope(somebody_elses_wrapper, message({"ce-id": str(ID)}))


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigurationError, match='"refuse" or "pass"'):
        InboxMiddleware(CheckThenMark(MemoryProcessedEvents()), without_id="drop")  # type: ignore[arg-type]

"""The first mistakes of a new user: each is one sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outrider import (
    ConfigurationError,
    ConsumerConfig,
    DomainEvent,
    EventBus,
    EventConsumer,
    ExponentialRetry,
    Handlers,
    InMemoryEventBus,
    InvalidEvent,
    Outbox,
    OutboxEventDispatcher,
    OutboxNames,
    OutboxRecord,
    OutboxRelay,
    RelayConfig,
    SqlInbox,
    SqlOutboxStore,
    SqlProcessedEvents,
    create_all,
    open_engine,
)
from outrider.admin import OutboxInspector, OutboxRepository
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore

URL = "sqlite:///first-errors-secret.db"
SYNC: Any = create_engine(URL)
ASYNC = create_async_engine(URL.replace("sqlite", "sqlite+aiosqlite"))
SOURCE = MemoryBroker().source("billing")
EVENT = DomainEvent("order.placed", "order", 1, {})


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "first_error_orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Money(BaseModel):
    amount: int


@dataclass(frozen=True, kw_only=True)
class BasketFilled(DomainEvent, type="basket.filled"):
    basket_id: int
    content: Any


@dataclass(frozen=True, kw_only=True)
class BasketSold(DomainEvent, type="basket.sold"):
    basket_id: int
    order: Order


class PlainPublisher:
    def publish(self, envelope: object) -> None: ...
    def publish_all(self, envelopes: object) -> None: ...


class PublishesOne:
    async def publish(self, envelope: object) -> None: ...


class PublishesMany:
    async def publish_all(self, envelopes: object) -> None: ...


class OpensPlainly(InMemoryEventBus):
    def open(self) -> None: ...  # type: ignore[override]


def relay_to(publisher: Any) -> OutboxRelay:
    return OutboxRelay(MemoryOutboxStore(), publisher)


def record(*events: Any) -> None:
    Outbox().record(Session(SYNC), *events)


MAKE_ONE = r"make one with open_engine\(url\)"
RELAY = r"write OutboxRelay\(SqlOutboxStore\(engine\), publisher\)"
MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "record a dict": (
        lambda: record({"id": 1}),
        *(TypeError, r"expected an event, got dict: make one with DomainEvent\("),
    ),
    "record a list": (
        lambda: record([EVENT]),
        *(TypeError, r"expected an event, got list: write record\(session, \*events\)"),
    ),
    "record a class": (
        lambda: record(BasketFilled),
        *(TypeError, "got the class BasketFilled: make an instance"),
    ),
    "record on an engine": (
        lambda: Outbox().record(SYNC, EVENT),
        *(TypeError, r"got Engine: write async with AsyncSession\(engine\)"),
    ),
    "dispatch one event": (
        lambda: OutboxEventDispatcher(Session(SYNC)).dispatch(EVENT),  # type: ignore[arg-type]
        *(TypeError, r"dispatch takes a list: write dispatch\(\[event\]\)"),
    ),
    "flush a list": (
        lambda: Outbox().flush(Session(SYNC), [EVENT]),  # type: ignore[arg-type]
        *(TypeError, r"expected an EventBus, got list: .* outbox\.record\(session, \*events\)"),
    ),
    "record with a text as id": (
        lambda: OutboxRecord(
            event_type="order.placed",
            payload={},
            occurred_at=datetime.now(UTC),
            id="7",  # type: ignore[arg-type]
        ),
        *(InvalidEvent, r"order\.placed: id: expected UUID, got str: write EventId\(\)"),
    ),
    "routes as a list": (
        lambda: Outbox(routes=["x"]),  # type: ignore[arg-type]
        *(ConfigurationError, r'got list: write routes=\{"order\.\*": "orders"'),
    ),
    "engine of nothing": (
        lambda: open_engine(None),  # type: ignore[arg-type]
        *(ConfigurationError, "not a database URL: write postgresql://user:password@host/"),
    ),
    "emit a dict": (
        lambda: EventBus().emit({}),  # type: ignore[arg-type]
        *(TypeError, "expected a DomainEvent, got dict"),
    ),
    "relay of an engine": (
        lambda: OutboxRelay(ASYNC),  # type: ignore[call-arg, arg-type]
        *(ConfigurationError, f"got AsyncEngine: {RELAY}"),
    ),
    "relay without publisher": (
        lambda: OutboxRelay(MemoryOutboxStore()),  # type: ignore[call-arg]
        *(ConfigurationError, f"got nothing: {RELAY}"),
    ),
    "relay to a URL": (
        lambda: OutboxRelay(MemoryOutboxStore(), "amqp://"),  # type: ignore[arg-type]
        *(ConfigurationError, f"got str: {RELAY}"),
    ),
    "relay to handlers": (
        lambda: OutboxRelay(MemoryOutboxStore(), Handlers()),  # type: ignore[arg-type]
        *(ConfigurationError, f"got Handlers: {RELAY}"),
    ),
    "relay to a class": (
        lambda: OutboxRelay(MemoryOutboxStore(), InMemoryEventBus),  # type: ignore[arg-type]
        *(ConfigurationError, f"got the class InMemoryEventBus: {RELAY}"),
    ),
    "relay to plain methods": (
        lambda: relay_to(PlainPublisher()),
        *(
            ConfigurationError,
            r"PlainPublisher\.publish cannot be awaited: write async def publish",
        ),
    ),
    "relay to a publisher of one": (
        lambda: relay_to(PublishesOne()),
        *(ConfigurationError, "PublishesOne has no publish_all: a publisher needs both methods"),
    ),
    "relay to a publisher of many": (
        lambda: relay_to(PublishesMany()),
        *(ConfigurationError, "PublishesMany has no publish: a publisher needs both methods"),
    ),
    "relay to a plain open": (
        lambda: relay_to(OpensPlainly()),
        *(ConfigurationError, r"OpensPlainly\.open cannot be awaited: write async def open"),
    ),
    "relay with a dict": (
        lambda: OutboxRelay(MemoryOutboxStore(), InMemoryEventBus(), {}),  # type: ignore[arg-type]
        *(ConfigurationError, r"takes a RelayConfig, got dict: write RelayConfig\(max_retries=3"),
    ),
    "relay with words for a policy": (
        lambda: RelayConfig(retry="exponential"),  # type: ignore[arg-type]
        *(ConfigurationError, r"relay: retry must be .*, such as ExponentialRetry\(\), not str"),
    ),
    "relay with a class for a policy": (
        lambda: RelayConfig(retry=ExponentialRetry),  # type: ignore[arg-type]
        *(ConfigurationError, r"such as ExponentialRetry\(\), not the class ExponentialRetry"),
    ),
    "relay with a number of seconds": (
        lambda: RelayConfig(poll_interval=3, retention=7),  # type: ignore[arg-type]
        *(ConfigurationError, r"poll_interval must be .*timedelta\(seconds=3\), not int; retenti"),
    ),
    "consumer with text for a number": (
        lambda: ConsumerConfig(max_retries="3", grace=None),  # type: ignore[arg-type]
        *(ConfigurationError, "consumer: max_retries must be an int, .* not str; grace must be .*"),
    ),
    "consumer of a URL": (
        lambda: EventConsumer("amqp://secret@"),  # type: ignore[arg-type]
        *(ConfigurationError, r"got str: write EventConsumer\(RabbitMQSource\(url, …\), handlers"),
    ),
    "consumer of nothing": (
        lambda: EventConsumer(None),  # type: ignore[arg-type]
        *(ConfigurationError, "a consumer takes a source, got nothing: write"),
    ),
    "consumer with a dict": (
        lambda: EventConsumer(SOURCE, (), {"prefetch": 1}),  # type: ignore[arg-type]
        *(ConfigurationError, r"got dict: write ConsumerConfig\(max_retries=3\)"),
    ),
    "consumer with an engine for an inbox": (
        lambda: EventConsumer(SOURCE, (), inbox=ASYNC),  # type: ignore[arg-type]
        *(ConfigurationError, r"got AsyncEngine: write SqlInbox\(async_sessionmaker\(engine\)\)"),
    ),
    "store of a URL": (
        lambda: SqlOutboxStore(URL),  # type: ignore[arg-type]
        *(ConfigurationError, f"SqlOutboxStore takes an AsyncEngine, not str: {MAKE_ONE}"),
    ),
    "store of a sync engine": (
        lambda: SqlOutboxStore(SYNC),
        *(ConfigurationError, f"SqlOutboxStore takes an AsyncEngine, not Engine: {MAKE_ONE}"),
    ),
    "repository of a sync engine": (
        lambda: OutboxRepository(SYNC),
        *(ConfigurationError, f"OutboxRepository takes an AsyncEngine, not Engine: {MAKE_ONE}"),
    ),
    "inspector of a sync engine": (
        lambda: OutboxInspector(SYNC),
        *(ConfigurationError, f"OutboxInspector takes an AsyncEngine, not Engine: {MAKE_ONE}"),
    ),
    "marks of a sync engine": (
        lambda: SqlProcessedEvents(SYNC),
        *(ConfigurationError, f"SqlProcessedEvents takes an AsyncEngine, not Engine: {MAKE_ONE}"),
    ),
    "tables for a sync engine": (
        lambda: create_all(SYNC).send(None),
        *(ConfigurationError, f"create_all takes an AsyncEngine, not Engine: {MAKE_ONE}"),
    ),
    "inbox of an engine": (
        lambda: SqlInbox(ASYNC),  # type: ignore[arg-type]
        *(ConfigurationError, r"not AsyncEngine: write SqlInbox\(async_sessionmaker\(engine\)\)"),
    ),
    "names for tables": (
        lambda: Outbox(OutboxNames()),  # type: ignore[arg-type]
        *(ConfigurationError, r"Outbox takes OutboxTables, not OutboxNames: .*OutboxTables\("),
    ),
    "names for tables of a store": (
        lambda: SqlOutboxStore(ASYNC, OutboxNames()),  # type: ignore[arg-type]
        *(ConfigurationError, "SqlOutboxStore takes OutboxTables, not OutboxNames"),
    ),
    "payload that is no dict": (
        lambda: DomainEvent("a.b", "a", 1, "text"),  # type: ignore[arg-type]
        *(InvalidEvent, "a.b: payload: expected a dict, got str"),
    ),
    "pydantic object as payload": (
        lambda: DomainEvent("a.b", "a", 1, Money(amount=1)),  # type: ignore[arg-type]
        *(InvalidEvent, r"a\.b: payload: expected a dict, got Money; give its model_dump\(\)"),
    ),
    "ORM object in a payload": (
        lambda: DomainEvent("a.b", "a", 1, {"order": Order(id=1)}),
        *(InvalidEvent, "a.b: order: Order has no JSON form; .* from the ORM object, such as its"),
    ),
    "ORM object in a field": (
        lambda: BasketFilled(basket_id=1, content=[Order(id=1)]),
        *(InvalidEvent, r"basket\.filled: content\[0\]: Order has no JSON form; .* ORM object"),
    ),
    "pydantic object in a field": (
        lambda: BasketFilled(basket_id=1, content=Money(amount=1)),
        *(InvalidEvent, r"content: Money has no JSON form; give its model_dump\(\)"),
    ),
    "ORM class as an annotation": (
        lambda: BasketSold(basket_id=1, order=Order(id=1)),
        *(ConfigurationError, "event class BasketSold: Order has no JSON form; .* ORM object"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_answered_with_one_sentence_and_its_cure(mistake: str) -> None:
    call, kind, sentence = MISTAKES[mistake]

    with pytest.raises(kind, match=sentence) as caught:
        call()

    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)

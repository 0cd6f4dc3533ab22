"""Events to JSON and back, beside the usual one-liner and beside bare msgspec; and the bus."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import msgspec

from bench.cases import JSON_ONE_LINER, LARGE_EVENT, SERIALIZE, SMALL_EVENT
from bench.measure import Row, compare, save, show
from outrider import (
    DomainEvent,
    EventEnvelope,
    InMemoryEventBus,
    deserialize_event,
    serialize_event,
)


class Role(Enum):
    USER = "user"


@dataclass(frozen=True, kw_only=True)
class AccountCreated(DomainEvent, type="bench.account_created", aggregate="account"):
    """The smallest realistic event: fixed costs weigh most here."""

    account_id: UUID
    email: str
    role: Role


@dataclass(frozen=True, kw_only=True)
class Line:
    sku: str
    quantity: int
    price: Decimal


@dataclass(frozen=True, kw_only=True)
class OrderPlaced(DomainEvent, type="bench.order_placed", aggregate="order"):
    """About 600 bytes with nested records."""

    order_id: UUID
    customer: str
    total: Decimal
    note: str | None
    lines: list[Line]


SMALL = AccountCreated(account_id=uuid4(), email="someone@example.org", role=Role.USER)
ORDER = OrderPlaced(
    order_id=uuid4(),
    customer="someone",
    total=Decimal("62.50"),
    note=None,
    lines=[Line(sku=f"sku-{n}", quantity=n, price=Decimal("12.50")) for n in range(1, 9)],
)


def encode(event: Any, rounds: int, seconds: float) -> list[Row]:
    bare = msgspec.json.Encoder()
    cases = {
        JSON_ONE_LINER: lambda: json.dumps(asdict(event), default=str),
        "bare msgspec": lambda: bare.encode(event).decode(),
        SERIALIZE: lambda: serialize_event(event),
    }
    return compare(cases, beside=list(cases)[:2], rounds=rounds, seconds=seconds)


def decode(event: Any, rounds: int, seconds: float) -> list[Row]:
    text, bare = serialize_event(event), msgspec.json.Decoder(type(event))
    cases = {
        "json.loads, to a dict only": lambda: json.loads(text),
        "bare msgspec": lambda: bare.decode(text),
        "deserialize_event": lambda: deserialize_event(event.event_type, text),
    }
    return compare(cases, beside=list(cases)[:2], rounds=rounds, seconds=seconds)


class Silent:
    """A handler that does nothing, so that only the bus is measured."""

    name = "silent"

    async def handle(self, envelope: EventEnvelope, /) -> None:
        pass


def publish(rounds: int, seconds: float) -> list[Row]:
    batch = [SMALL.to_envelope() for _ in range(100)]
    loop = asyncio.new_event_loop()

    def hundred() -> None:
        bus = InMemoryEventBus([(SMALL.event_type, Silent())])
        loop.run_until_complete(bus.publish_all(batch))

    rows = compare({"100 events, one handler": hundred}, beside=[], rounds=rounds, seconds=seconds)
    loop.close()
    return rows


def run(rounds: int = 7, seconds: float = 0.3) -> dict[str, list[Row]]:
    tables = {
        SMALL_EVENT: encode(SMALL, rounds, seconds),
        "small event ← JSON": decode(SMALL, rounds, seconds),
        LARGE_EVENT: encode(ORDER, rounds, seconds),
        "order with 8 lines ← JSON": decode(ORDER, rounds, seconds),
        "InMemoryEventBus": publish(rounds, seconds),
    }
    for title, rows in tables.items():
        show(title, rows)
    hundred = tables["InMemoryEventBus"][0]
    print(f"  {1000 / hundred.per_second:.3f} ms for 100 events")
    save("codec", tables, {"rounds": rounds, "seconds": seconds})
    return tables

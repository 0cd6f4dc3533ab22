"""Events that several unit tests share: every field type a user may declare."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

from outrider import DomainEvent


class Role(Enum):
    USER = "user"
    ADMIN = "admin"


class Priority(IntEnum):
    LOW = 1
    HIGH = 9


@dataclass(frozen=True, kw_only=True)
class Line:
    sku: str
    quantity: int
    price: Decimal


@dataclass(frozen=True, kw_only=True)
class OrderPlaced(DomainEvent, type="order.placed", aggregate="order"):
    order_id: UUID
    total: Decimal
    lines: list[Line]


@dataclass(frozen=True, kw_only=True)
class AccountOpened(DomainEvent):
    account_id: UUID
    email: str
    role: Role = Role.USER


@dataclass(frozen=True, kw_only=True)
class Everything(DomainEvent, type="thing.happened", aggregate_id="number"):
    number: int
    ratio: float
    amount: Decimal
    flag: bool
    day: date
    at: datetime
    took: timedelta
    role: Role
    priority: Priority
    raw: bytes
    maybe: str | None
    mode: Literal["fast", "slow"]
    line: Line
    lines: tuple[Line, ...]
    pair: tuple[int, str]
    tags: set[str]
    ids: frozenset[UUID]
    prices: dict[str, Decimal]
    by_day: dict[date, list[datetime | None]]
    anything: Any


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    children: list[Node]


@dataclass(frozen=True, kw_only=True)
class TreePlanted(DomainEvent, type="tree.planted"):
    tree_id: int
    root: Node

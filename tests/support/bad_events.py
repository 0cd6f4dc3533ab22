"""Events of every field type, and events that must be refused, with the refusal's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from outrider import DomainEvent
from tests.support.shop import AccountOpened, Everything, Line, Node, Priority, Role, TreePlanted

NOON = datetime(2026, 2, 8, 12, 0, 0, 123456, tzinfo=UTC)
LINE = Line(sku="a", quantity=2, price=Decimal("1.10"))


def everything(**fields: Any) -> Everything:
    usual: dict[str, Any] = {
        "number": 2**80,
        "ratio": 0.1,
        "amount": Decimal("1.10"),
        "flag": True,
        "day": date(2026, 2, 8),
        "at": NOON.astimezone(timezone(timedelta(hours=2))),
        "took": timedelta(days=1, microseconds=1),
        "role": Role.ADMIN,
        "priority": Priority.HIGH,
        "raw": b"\x00\xff",
        "maybe": None,
        "mode": "fast",
        "line": LINE,
        "lines": (LINE, LINE),
        "pair": (1, "x"),
        "tags": {"b", "a"},
        "ids": frozenset({UUID(int=1)}),
        "prices": {"a": Decimal("0.30")},
        "by_day": {date(2026, 1, 1): [NOON, None]},
        "anything": {"deep": [1, "two", None, 2.5, True]},
    }
    return Everything(**{**usual, **fields})


def account(**fields: Any) -> AccountOpened:
    return AccountOpened(**{"account_id": uuid4(), "email": "a@example.org", **fields})


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def tree(levels: int) -> Node:
    node = Node(name="leaf", children=[])
    for _ in range(levels):
        node = Node(name="n", children=[node])
    return node


BAD_EVENTS: dict[str, tuple[Callable[[], DomainEvent], str]] = {
    "naive datetime": (lambda: everything(at=datetime(2026, 1, 1)), "at: naive datetime"),
    "naive occurred_at": (
        lambda: account(occurred_at=datetime(2026, 1, 1)),
        "occurred_at: naive datetime",
    ),
    "naive datetime inside": (
        lambda: everything(by_day={date(2026, 1, 1): [datetime(2026, 1, 1)]}),
        r"by_day\.2026-01-01\[0\]: naive datetime",
    ),
    "offset with seconds": (
        lambda: everything(at=NOON.astimezone(timezone(timedelta(seconds=3)))),
        "at: time zone offset",
    ),
    "nan": (lambda: everything(ratio=float("nan")), "ratio: NaN"),
    "infinity": (lambda: everything(ratio=float("-inf")), "ratio: NaN"),
    "decimal nan": (lambda: everything(amount=Decimal("sNaN")), "amount: NaN"),
    "decimal infinity": (lambda: everything(prices={"a": Decimal("inf")}), r"prices\.a: NaN"),
    "nan ad hoc": (
        lambda: DomainEvent("a.b", "a", 1, {"x": [0.0, {"y": float("inf")}]}),
        r"a\.b: x\[1\]\.y: NaN",
    ),
    "lone surrogate": (lambda: account(email="\ud800"), "email: contains half of a surrogate"),
    "surrogate in a key": (
        lambda: DomainEvent("a.b", "a", 1, {"\udfff": 1}),
        r"a key\): contains half of a surrogate",
    ),
    "nul": (lambda: account(email="a\x00b"), r"email: contains the character U\+0000"),
    "nul deep inside": (
        lambda: DomainEvent("a.b", "a", 1, {"x": [{"y": "\\u0000", "z": "\x00"}]}),
        r"x\[0\]\.z: contains the character U\+0000",
    ),
    "key that is no string": (
        lambda: DomainEvent("a.b", "a", 1, {"x": {1: 2}}),
        "a.b: x: key of type int",
    ),
    "untyped key that is no string": (
        lambda: everything(anything={"x": {None: 1}}),
        r"anything\.x: key of type NoneType",
    ),
    "typed key of another type": (
        lambda: everything(prices={1: Decimal(1)}),
        "prices: key of type int",
    ),
    "cycle": (lambda: DomainEvent("a.b", "a", 1, cycle()), "deeper than 100 levels"),
    "10,000 levels": (lambda: DomainEvent("a.b", "a", 1, nested(10_000)), "deeper than 100"),
    "10,000 levels typed": (lambda: everything(anything=nested(10_000)), "deeper than 100"),
    "10,000 levels of one class": (
        lambda: TreePlanted(tree_id=1, root=tree(10_000)),
        "tree.planted.*deeper than 100",
    ),
    "unknown value": (lambda: DomainEvent("a.b", "a", 1, {"x": object()}), "x: object has no JSON"),
    "value that would change": (
        lambda: everything(anything=[uuid4()]),
        r"anything\[0\]: UUID in an untyped place",
    ),
    "wrong type": (lambda: everything(number="1"), "number: expected int, got str"),
    "bool for int": (lambda: everything(number=True), "number: expected int, got bool"),
    "None for str": (lambda: account(email=None), "email: expected str, got None"),
    "datetime for date": (lambda: everything(day=NOON), "day: expected date, got datetime"),
    "text for enum": (lambda: account(role="user"), "role: expected Role, got str"),
    "wrong member": (lambda: everything(tags={"a", 1}), r"tags\[\d\]: expected str, got int"),
    "wrong nested field": (
        lambda: everything(line=replace(LINE, quantity="2")),
        r"line\.quantity: expected int, got str",
    ),
    "wrong literal": (lambda: everything(mode="medium"), "mode: expected one of 'fast', 'slow'"),
    "short tuple": (lambda: everything(pair=(1,)), "pair: expected 2 members, got 1"),
    "event id": (lambda: account(event_id="x"), "event_id: expected UUID, got str"),
    "integer of 5,000 digits": (lambda: everything(number=10**5_000), "number: integer too large"),
    "integer no float holds": (
        lambda: everything(ratio=2**64 + 1),
        "ratio: NaN, infinities and int",
    ),
    "large payload": (
        lambda: account(email="x" * 100_000_000),
        "payload of 100,000,.* over the limit",
    ),
}

"""The cost of events for the transaction that records them, beside a row inserted by hand."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import (
    URL,
    Column,
    Engine,
    Executable,
    MetaData,
    Numeric,
    Table,
    Text,
    Uuid,
    create_engine,
    delete,
    insert,
    make_url,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bench.cases import (
    ALONE,
    ASYNC_POSTGRES,
    BY_HAND,
    NOTIFY_INSIDE,
    ONE_EVENT,
    ONE_EVENT_NO_WAKE_UP,
    TEN_EVENTS,
)
from bench.measure import Row, interleave, rows_of, save, show
from outrider import DomainEvent, Outbox, OutboxNames, OutboxTables
from outrider.testing.services import Services

CONNECTIONS = 8
WARM_UP = 0.2
"""The part of a slice that warms up and is not counted."""

NAMES = OutboxNames(table="bench_outbox", processed="bench_processed", channel="bench_channel")
METADATA = MetaData()
TABLES = OutboxTables(NAMES, metadata=METADATA)
ORDERS = Table(
    "bench_orders",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("customer", Text, nullable=False),
    Column("total", Numeric(12, 2), nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class OrderShipped(DomainEvent, type="bench.order_shipped", aggregate="order"):
    """About 300 bytes of JSON."""

    order_id: UUID
    customer: str
    total: Decimal
    carrier: str
    address: str


def shipped(order: UUID) -> OrderShipped:
    return OrderShipped(
        order_id=order,
        customer="someone@example.org",
        total=Decimal("62.50"),
        carrier="Outrider Parcels",
        address="1 Long Street, 12345 Some Town, Somewhere",
    )


PAYLOAD = json.dumps(asdict(shipped(uuid4())), default=str)

Statement = Callable[[UUID], tuple[Executable, dict[str, Any]]]


def business(order: UUID) -> tuple[Executable, dict[str, Any]]:
    return _INSERT_ORDER, {"id": order, "customer": "someone", "total": Decimal("62.50")}


def by_hand(order: UUID) -> tuple[Executable, dict[str, Any]]:
    """An equal row whose JSON was made beforehand, so nothing can be faster."""
    key = random.getrandbits(63)
    return _INSERT_BY_HAND, {
        "id": uuid4(),
        "sink": "default",
        "lane": key % 64,
        "aggregate_key": key,
        "event_type": OrderShipped.event_type,
        "event_version": 1,
        "aggregate_type": "order",
        "aggregate_id": str(order),
        "payload": PAYLOAD,
        "metadata": "{}",
        "occurred_at": datetime.now(UTC),
    }


def by_hand_in_sqlite(order: UUID) -> tuple[Executable, dict[str, Any]]:
    statement, row = by_hand(order)
    return statement, {**row, "id": row["id"].hex, "occurred_at": row["occurred_at"].isoformat(" ")}


def notify(_order: UUID) -> tuple[Executable, dict[str, Any]]:
    return _NOTIFY, {"channel": NAMES.channel}


_COLUMNS = (
    "id, sink, lane, aggregate_key, event_type, event_version, aggregate_type, aggregate_id, "
    "payload, metadata, occurred_at"
)
_INSERT_ORDER = insert(ORDERS)
_VALUES = ":" + _COLUMNS.replace(", ", ", :")
_INSERT_BY_HAND = text(f"INSERT INTO {NAMES.table} ({_COLUMNS}) VALUES ({_VALUES})")  # noqa: S608
_NOTIFY = text("SELECT pg_notify(:channel, '')")


OUTBOX, NO_WAKE_UP = Outbox(TABLES), Outbox(TABLES, wake_up=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One transaction: its statements, then its events."""

    statements: tuple[Statement, ...]
    events: int = 0
    outbox: Outbox = OUTBOX

    async def transaction(self, session: AsyncSession) -> None:
        async with session, session.begin():
            order = uuid4()
            for statement in self.statements:
                await session.execute(*statement(order))
            if self.events:
                self.outbox.record(session, *[shipped(order) for _ in range(self.events)])

    def sync_transaction(self, session: Session) -> None:
        with session, session.begin():
            order = uuid4()
            for statement in self.statements:
                session.execute(*statement(order))
            if self.events:
                self.outbox.record(session, *[shipped(order) for _ in range(self.events)])


CASES = {
    ALONE: Case(statements=(business,)),
    BY_HAND: Case(statements=(business, by_hand)),
    ONE_EVENT: Case(statements=(business,), events=1),
    ONE_EVENT_NO_WAKE_UP: Case(statements=(business,), events=1, outbox=NO_WAKE_UP),
    TEN_EVENTS: Case(statements=(business,), events=10),
    NOTIFY_INSIDE: Case(statements=(business, by_hand, notify)),
}
IN_SQLITE = {
    ALONE: CASES[ALONE],
    BY_HAND: Case(statements=(business, by_hand_in_sqlite)),
    ONE_EVENT: CASES[ONE_EVENT],
    TEN_EVENTS: CASES[TEN_EVENTS],
}


class Count:
    """Transactions between the end of the warm-up and the end of the slice, at least one."""

    def __init__(self, seconds: float) -> None:
        self._begin = self._last = time.perf_counter() + WARM_UP * seconds
        self._end = self._begin + seconds
        self._cpu = time.process_time()
        self._done = self._counted = 0

    def goes_on(self) -> bool:
        return not self._counted or self._last < self._end

    def add(self) -> None:
        self._done += 1
        now = time.perf_counter()
        if now > self._begin:
            self._counted += 1
            self._last = now

    @property
    def per_second(self) -> float:
        return self._counted / (self._last - self._begin)

    @property
    def per_cpu_second(self) -> float:
        """By the CPU time of all threads of this process, without the servers."""
        return self._done / (time.process_time() - self._cpu)


async def with_tasks(engine: AsyncEngine, case: Case, seconds: float, connections: int) -> Count:
    count = Count(seconds)

    async def work() -> None:
        while count.goes_on():
            await case.transaction(AsyncSession(engine))
            count.add()

    await asyncio.gather(*(work() for _ in range(connections)))
    return count


def with_threads(engine: Engine, case: Case, seconds: float, connections: int) -> float:
    def work(count: Count) -> float:
        while count.goes_on():
            case.sync_transaction(Session(engine))
            count.add()
        return count.per_second

    with ThreadPoolExecutor(connections) as threads:
        return sum(threads.map(work, [Count(seconds) for _ in range(connections)]))


class Watch:
    """Listens on the channel as a relay does, and empties the tables between two slices."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"LISTEN {NAMES.channel}")
        self.notifications: dict[str, int] = {}

    def before(self) -> None:
        self._read(0)  # drop what the slice before has sent late
        self._connection.execute(f"TRUNCATE {ORDERS.name}, {NAMES.table}")

    def after(self, name: str) -> None:
        """Reads the notifications after the slice, so that reading them is not measured."""
        received = self._read(0.05)
        self.notifications[name] = self.notifications.get(name, 0) + received

    def _read(self, seconds: float) -> int:
        return sum(1 for _ in self._connection.notifies(timeout=seconds))

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long to measure."""

    rounds: int
    seconds: float


def in_postgres(url: str, length: Length) -> tuple[list[Row], list[Row], dict[str, int]]:
    """The rates by the clock, the rates by this process's CPU time, and the notifications."""
    engine = create_async_engine(_driver(url, "asyncpg"), pool_size=CONNECTIONS, max_overflow=0)
    per_cpu_second: dict[str, list[float]] = {name: [] for name in CASES}
    with asyncio.Runner() as runner, closing(Watch(url)) as watch:

        def one(name: str) -> float:
            watch.before()
            count = runner.run(with_tasks(engine, CASES[name], length.seconds, CONNECTIONS))
            per_cpu_second[name].append(count.per_cpu_second)
            watch.after(name)
            return count.per_second

        rows = _compare(one, CASES, length)
        runner.run(engine.dispose())
    return rows, rows_of(per_cpu_second, [ALONE, BY_HAND]), watch.notifications


def in_postgres_with_threads(url: str, length: Length) -> list[Row]:
    engine = create_engine(_driver(url, "psycopg"), pool_size=CONNECTIONS, max_overflow=0)
    with closing(Watch(url)) as watch:

        def one(name: str) -> float:
            watch.before()
            return with_threads(engine, CASES[name], length.seconds, CONNECTIONS)

        rows = _compare(one, CASES, length)
    engine.dispose()
    return rows


def in_sqlite(folder: Path, length: Length) -> list[Row]:
    """One connection, since a file has one writer at a time."""
    path = folder / "bench.db"
    sync = create_engine(f"sqlite:///{path}")
    METADATA.create_all(sync)
    with sync.begin() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    with asyncio.Runner() as runner:

        def one(name: str) -> float:
            with sync.begin() as connection:
                connection.execute(delete(ORDERS))
                connection.execute(delete(TABLES.outbox))
            return runner.run(with_tasks(engine, IN_SQLITE[name], length.seconds, 1)).per_second

        rows = _compare(one, IN_SQLITE, length)
        runner.run(engine.dispose())
    sync.dispose()
    return rows


def _compare(one: Callable[[str], float], cases: Iterable[str], length: Length) -> list[Row]:
    slices = {name: partial(one, name) for name in cases}
    return interleave(slices, beside=[ALONE, BY_HAND], rounds=length.rounds)


def _driver(url: str, driver: str) -> URL:
    return make_url(url).set(drivername=f"postgresql+{driver}")


@contextmanager
def _tables(url: str) -> Iterator[None]:
    engine = create_engine(_driver(url, "psycopg"))
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    try:
        yield
    finally:
        METADATA.drop_all(engine)
        engine.dispose()


def run(
    rounds: int = 31, seconds: float = 0.25, services: Services | None = None
) -> dict[str, list[Row]]:
    length = Length(rounds=rounds, seconds=seconds)
    with ExitStack() as stack:
        services = services or stack.enter_context(Services())
        url = services.postgres.url
        stack.enter_context(_tables(url))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        by_clock, by_cpu, notifications = in_postgres(url, length)
        tables = {
            ASYNC_POSTGRES: by_clock,
            "the same, per second of this process's CPU time": by_cpu,
            "PostgreSQL, Session in threads, psycopg": in_postgres_with_threads(url, length),
            "SQLite, AsyncSession, aiosqlite, one connection": in_sqlite(folder, length),
        }
    for title, rows in tables.items():
        show(title, rows)
    settings = {
        "connections": CONNECTIONS,
        "payload_bytes": len(PAYLOAD),
        "notifications": notifications,
    }
    save("producer", tables, {**asdict(length), **settings})
    return tables

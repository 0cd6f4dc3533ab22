"""The shop: orders and invoices, the events between them, and customers who never rest."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from outrider.context import event_context
from outrider.events import DomainEvent
from outrider.handlers import Handlers
from outrider.sql.outbox import Outbox

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_metadata: Final = MetaData()
orders: Final = Table(
    "demo_orders",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String, unique=True),
    Column("customer", String),
    Column("total", String),
    Column("status", String),
)
invoices: Final = Table(
    "demo_invoices",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("order_id", String),
    Column("total", String),
)

BROKER, STREAM = "broker", "stream"
outbox: Final = Outbox(routes={"*": [BROKER, STREAM]})
handlers: Final = Handlers()
_CUSTOMERS: Final = ("Ada", "Boris", "Chiara", "Dilan", "Emeka", "Femi", "Grete", "Hanako")
_SHOWN: Final = 12


@dataclass(frozen=True, kw_only=True)
class OrderPlaced(DomainEvent, type="demo.order.placed", aggregate="order"):
    order_id: UUID
    total: Decimal
    poisoned: bool = False


@dataclass(frozen=True, kw_only=True)
class OrderShipped(DomainEvent, type="demo.order.shipped", aggregate="order"):
    order_id: UUID


@handlers.handles(OrderPlaced)
async def write_invoice(event: OrderPlaced, session: AsyncSession) -> None:
    """In the inbox's transaction: the invoice and the mark "handled" commit together."""
    row = {"order_id": str(event.order_id), "total": str(event.total)}
    await session.execute(insert(invoices).values(row))


class Shop:
    """What requests do, and what the page shows."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._chance = random.Random()  # noqa: S311 - customers, not secrets

    async def create_tables(self) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(_metadata.create_all)

    async def place(self, *, poisoned: bool = False) -> str:
        """One request: the order and its event in one transaction."""
        order_id, total = uuid4(), Decimal(self._chance.randrange(500, 20_000)) / 100
        customer = self._chance.choice(_CUSTOMERS)
        with event_context(correlation_id=f"req-{str(order_id)[:8]}"):
            async with AsyncSession(self._engine) as session, session.begin():
                row = {"id": str(order_id), "customer": customer, "total": str(total)}
                await session.execute(insert(orders).values(status="placed", **row))
                placed = OrderPlaced(order_id=order_id, total=total, poisoned=poisoned)
                outbox.record(session, placed)
        return str(order_id)

    async def ship_one(self) -> None:
        async with AsyncSession(self._engine) as session, session.begin():
            waiting = select(orders.c.id).where(orders.c.status == "placed")
            order_id = await session.scalar(waiting.order_by(orders.c.number).limit(1))
            if order_id is not None:
                shipped = update(orders).where(orders.c.id == order_id)
                await session.execute(shipped.values(status="shipped"))
                outbox.record(session, OrderShipped(order_id=UUID(order_id)))

    async def keep_busy(self, pause: float = 0.7) -> None:
        """A trickle of customers, so that there is something to see."""
        while True:
            await self.place()
            if self._chance.random() < 0.5:
                await self.ship_one()
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * pause)

    async def shown(self) -> dict[str, Any]:
        """The business rows and the outbox rows, side by side."""
        table = outbox.tables.outbox
        c = table.c
        rows = select(
            c.position, c.event_type, c.aggregate_id, c.status, c.retry_count, c.last_error
        ).where(c.sink == BROKER)
        async with self._engine.connect() as db:
            latest = orders.select().order_by(orders.c.number.desc()).limit(_SHOWN)
            bills = invoices.select().order_by(invoices.c.number.desc()).limit(_SHOWN)
            events = rows.order_by(c.position.desc()).limit(_SHOWN)
            return {
                "orders": [dict(row._mapping) for row in await db.execute(latest)],
                "invoices": [dict(row._mapping) for row in await db.execute(bills)],
                "outbox": [dict(row._mapping) for row in await db.execute(events)],
            }

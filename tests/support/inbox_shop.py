"""A small shop behind an inbox: effects that can be counted, and marks that can be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outrider import DomainEvent, EventEnvelope, Handlers
from outrider.consumer.handler_runner import Failure, HandlerRunner
from outrider.consumer.scopes import ObjectScope, Scope
from outrider.consumer.sql_inbox import SqlInbox
from outrider.ports import EventHandler, Inbox
from outrider.store.schema.tables import OutboxTables


class Base(DeclarativeBase): ...


class Invoice(Base):
    """The effect; nothing but the inbox keeps it from being there twice."""

    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


class Customer(Base):
    __tablename__ = "customer"
    email: Mapped[str] = mapped_column(primary_key=True)


@dataclass(frozen=True, kw_only=True)
class OrderPlaced(DomainEvent, type="inbox.order.placed", aggregate="order"):
    order_id: int


Work = Callable[[OrderPlaced, AsyncSession], Any]


def handler_of(work: Work) -> EventHandler:
    """As an application declares it."""
    handlers = Handlers()

    @handlers.handles(OrderPlaced)
    async def send_invoice(event: OrderPlaced, session: AsyncSession) -> None:
        done = work(event, session)
        if isinstance(done, Awaitable):
            await done

    (handler,) = handlers.of(OrderPlaced.event_type)
    return handler


async def invoice(event: OrderPlaced, session: AsyncSession) -> None:
    session.add(Invoice(order_id=event.order_id))
    await session.flush()


class Shop:
    """One database, and deliveries to a handler through an inbox."""

    def __init__(self, engine: AsyncEngine, inbox: Inbox | None = None) -> None:
        self.engine = engine
        self.sessions = async_sessionmaker(engine)
        self.inbox = inbox or SqlInbox(self.sessions)

    async def open(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    async def deliver(
        self, envelope: EventEnvelope, work: Work = invoice, **settings: Any
    ) -> Failure | None:
        """As a consumer does, with a memory of its own each time."""
        calls = HandlerRunner(**{"inbox": self.inbox} | settings)
        async with asyncio.timeout(60):
            failures = await calls.deliver(envelope, [handler_of(work)])
        return failures[0] if failures else None

    @asynccontextmanager
    async def scope(self, _envelope: EventEnvelope) -> AsyncIterator[Scope]:
        """As a container makes them, for an inbox without sessions of its own."""
        async with self.sessions() as session:
            yield ObjectScope({AsyncSession: session})

    async def invoices(self) -> int:
        async with self.sessions() as session:
            return await session.scalar(select(func.count()).select_from(Invoice)) or 0

    async def marks(self) -> int:
        async with self.engine.connect() as connection:
            marks = select(func.count()).select_from(OutboxTables().processed)
            return await connection.scalar(marks) or 0

    async def state(self) -> tuple[int, int]:
        """Effects and marks."""
        return await self.invoices(), await self.marks()

    async def blocked(self) -> bool:
        """Whether somebody waits for a lock; only PostgreSQL can tell."""
        if self.engine.dialect.name != "postgresql":
            return True
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        async with self.engine.connect() as connection:
            return bool(await connection.scalar(text(query)))


def placed(order_id: int = 1) -> EventEnvelope:
    return OrderPlaced(order_id=order_id).to_envelope()

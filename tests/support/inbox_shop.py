"""A small shop behind an inbox; tests count its effects and read the inbox's marks."""

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
    """The effect of an event; only the inbox prevents a second one."""

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
    """The table as an application declares it."""
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
    """One database, and a handler that gets its deliveries through an inbox."""

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
        """Deliver as a new consumer does, which remembers nothing."""
        calls = HandlerRunner(**{"inbox": self.inbox} | settings)
        async with asyncio.timeout(60):
            failures = await calls.deliver(envelope, [handler_of(work)])
        return failures[0] if failures else None

    @asynccontextmanager
    async def scope(self, _envelope: EventEnvelope) -> AsyncIterator[Scope]:
        """A scope as a container creates it, for an inbox without its own sessions."""
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
        """How many effects and how many marks there are."""
        return await self.invoices(), await self.marks()

    async def blocked(self) -> bool:
        """Whether a session waits for a lock; only PostgreSQL shows that."""
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

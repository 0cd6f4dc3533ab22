"""A shop on SQLite: requests write orders and events, a relay brings them to handlers.

One process, no services. One handler fails at first, and one event can never be handled: see
that only its own order waits for it.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outrider import (
    DomainEvent,
    EventMetadata,
    ExponentialRetry,
    Handlers,
    InProcessPublisher,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
    event_context,
)
from outrider.observability import EventFailed, PublishRetried, RelayStarted, RelayStopped, Signal

handlers, outbox = Handlers(), Outbox()
handled: list[str] = []
all_handled = asyncio.Event()
paper_jams = iter(["first try", "second try"])


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]


@dataclass(frozen=True, kw_only=True)
class OrderPlaced(DomainEvent, type="order.placed"):
    order_id: int
    total: Decimal


@dataclass(frozen=True, kw_only=True)
class OrderShipped(DomainEvent, type="order.shipped"):
    order_id: int
    parcel: str


@handlers.handles(OrderPlaced)
async def send_invoice(event: OrderPlaced, metadata: EventMetadata) -> None:
    if event.order_id == 2 and next(paper_jams, None):
        raise ConnectionError("the printer is jammed")
    if event.total < 0:
        raise ValueError("nobody pays less than nothing")
    say(f"invoice of {event.total} for order {event.order_id} ({metadata.correlation_id})")


@handlers.handles(OrderShipped)
async def tell_customer(event: OrderShipped) -> None:
    say(f"parcel {event.parcel} of order {event.order_id} is on its way")


def say(text: str) -> None:
    handled.append(text)
    print(f"  handler │ {text}")
    if len(handled) == 7:
        all_handled.set()


async def place_order(session: AsyncSession, number: int, total: str) -> None:
    """One request: the order and its events are committed together."""
    with event_context(correlation_id=f"req-{number}"):
        async with session.begin():
            session.add(Order(id=number, status="placed"))
            outbox.record(session, OrderPlaced(order_id=number, total=Decimal(total)))
        async with session.begin():
            (await session.get_one(Order, number)).status = "shipped"
            outbox.record(session, OrderShipped(order_id=number, parcel=f"P{number:03}"))
    print(f"  request │ order {number} placed and shipped")


async def failing_request(session: AsyncSession) -> None:
    session.add(Order(id=99, status="placed"))
    outbox.record(session, OrderPlaced(order_id=99, total=Decimal(1)))
    await session.rollback()
    print("  request │ fails before its commit: neither order nor event exists")


def watch(signal: Signal) -> None:
    match signal:
        case RelayStarted():
            print(f"    relay │ started: {Path(signal.store).name} -> {signal.publisher}")
        case PublishRetried():
            print(f"    relay │ {signal.event_type} was refused, attempt {signal.attempt}")
        case EventFailed():
            print(f"    relay │ {signal.event_type} FAILED, kept for a person to look at")
        case RelayStopped():
            print(f"    relay │ stopped after {signal.published} events")


async def run(engine: AsyncEngine) -> None:
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    quick = ExponentialRetry(first=timedelta(milliseconds=100))
    config = RelayConfig(retry=quick, max_retries=4, poll_interval=timedelta(milliseconds=100))
    relay = OutboxRelay(
        SqlOutboxStore(engine), InProcessPublisher(handlers), config, on_signal=watch
    )
    sessions = async_sessionmaker(engine)
    async with relay, sessions() as session:
        await failing_request(session)
        for number, total in enumerate(["49.90", "12.00", "-1", "8.50"], 1):
            await place_order(session, number, total)
        async with asyncio.timeout(20):
            await all_handled.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        async def work() -> None:
            engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/shop.db")
            try:
                await run(engine)
            finally:
                await engine.dispose()

        asyncio.run(work())
    print(f"{len(handled)} effects of 8 events; the eighth was refused for ever, on purpose.")


if __name__ == "__main__":
    main()

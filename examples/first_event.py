"""A first event: declared, emitted by a request, published, handled, and read back from JSON."""

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID, uuid4

from outrider import DomainEvent, EventBus, EventEnvelope, EventMetadata, Handlers, InMemoryEventBus

handlers = Handlers()


@dataclass(frozen=True, kw_only=True)
class OrderPlaced(DomainEvent, type="order.placed", aggregate="order"):
    order_id: UUID
    total: Decimal


@dataclass(frozen=True, kw_only=True)
class OrderShipped(DomainEvent, type="order.shipped", aggregate="order"):
    order_id: UUID
    parcel: str


@handlers.handles(OrderPlaced)
async def send_invoice(event: OrderPlaced) -> None:
    print(f"   send_invoice    an invoice over {event.total} for order {short(event.aggregate_id)}")


@handlers.handles(OrderPlaced, OrderShipped)
async def update_dashboard(event: DomainEvent, metadata: EventMetadata) -> None:
    print(f"   update_dashboard {event.event_type}, part of request {metadata.correlation_id}")


def short(identifier: object) -> str:
    return f"{identifier}"[-8:]


async def main() -> None:
    print("1. A request raises events; they are collected, nothing is sent yet.")
    request, order_id = EventBus(), uuid4()
    request.emit(OrderPlaced(order_id=order_id, total=Decimal("49.90")))
    request.emit(OrderShipped(order_id=order_id, parcel="JD014"))
    print(f"   {request.event_count} events are waiting")

    print("2. They are put into envelopes that survive a database or a broker as JSON.")
    metadata = EventMetadata(correlation_id="req-1", user_id="not shown anywhere")
    texts = [event.to_envelope(metadata).to_json() for event in request.collect()]
    for text in texts:
        print(f"   {len(text)} bytes: {EventEnvelope.from_json(text)}")

    print("3. They are published, in order; every handler gets the typed event.")
    bus = InMemoryEventBus(handlers)
    await bus.publish_all([EventEnvelope.from_json(text) for text in texts])

    print(f"4. Done: {bus.event_count} events published for order {short(order_id)}.")


if __name__ == "__main__":
    asyncio.run(main())

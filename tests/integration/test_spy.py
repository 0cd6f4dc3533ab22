"""The spy: an application's tests see what it recorded, and deliver it without a broker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import DomainEvent, Handlers, InProcessPublisher, Outbox
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.spy import OutboxSpy

outbox = Outbox(wake_up=False)


@dataclass(frozen=True, kw_only=True)
class LampLit(DomainEvent, type="lamp.lit"):
    lamp_id: int


@dataclass(frozen=True, kw_only=True)
class RoomBright(DomainEvent, type="room.bright"):
    room_id: int


async def record(engine: AsyncEngine, *events: DomainEvent) -> None:
    async with engine.begin() as connection:
        outbox.record(connection, *events)


async def test_recorded_events_are_seen_typed_and_in_order(database: AsyncEngine) -> None:
    lit = [LampLit(lamp_id=1), LampLit(lamp_id=2)]
    await record(database, lit[0], RoomBright(room_id=7), lit[1])
    spy = OutboxSpy(database)

    assert await spy.recorded(LampLit) == lit
    assert [e.event_type for e in await spy.waiting()] == ["lamp.lit", "room.bright", "lamp.lit"]


async def test_delivery_brings_all_and_what_handlers_record_too(database: AsyncEngine) -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(LampLit)
    async def brighten(event: LampLit) -> None:
        await record(database, RoomBright(room_id=event.lamp_id))

    @handlers.handles(RoomBright)
    async def look(event: RoomBright) -> None:
        seen.append(event.room_id)

    await record(database, LampLit(lamp_id=1), LampLit(lamp_id=2))

    assert await OutboxSpy(database).deliver(InProcessPublisher(handlers)) == 4
    assert sorted(seen) == [1, 2]


async def test_refused_events_are_left(database: AsyncEngine) -> None:
    broker = MemoryBroker(refuse=lambda e: "no" if e.aggregate_id == "1" else None)
    await record(database, LampLit(lamp_id=1), LampLit(lamp_id=2))
    spy = OutboxSpy(database)

    assert await spy.deliver(broker.publisher(), within=timedelta(seconds=20)) == 1
    assert [e.aggregate_id for e in broker.events] == ["2"]
    assert [event.lamp_id for event in await spy.recorded(LampLit)] == [1]

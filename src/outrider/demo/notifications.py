"""The consumer's effect in the demo: one notification per event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from outrider.consumer.scopes import current_scope

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.events.envelope import EventEnvelope
    from outrider.events.strict_json import JsonObject

METADATA: Final = MetaData()
_notifications: Final = Table(
    "demo_notifications",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("event_type", String(255)),
    Column("message_id", String(255)),
)


class Notify:
    """Works in the inbox's transaction: the notification and the mark commit together."""

    name = "notify"

    async def handle(self, envelope: EventEnvelope, /) -> None:
        scope = current_scope()
        assert scope is not None, "the inbox opens one"  # noqa: S101
        session = await scope.get(AsyncSession)
        row = {"event_type": envelope.event_type, "message_id": envelope.aggregate_id}
        await session.execute(insert(_notifications).values(row))


async def read_notifications(engine: AsyncEngine, limit: int) -> tuple[int, list[JsonObject]]:
    """The number of notifications, and the latest ones."""
    latest = _notifications.select().order_by(_notifications.c.number.desc()).limit(limit)
    async with engine.connect() as db:
        count = await db.scalar(select(func.count()).select_from(_notifications))
        return count or 0, [dict(row) for row in (await db.execute(latest)).mappings()]

"""The tables of this application, and the outbox that its events are written to."""

from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID, uuid4

from sqlalchemy import JSON, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outrider import Outbox, OutboxNames, OutboxTables, UtcDateTime

OUTBOX_NAMES = OutboxNames(table="outbox_events")
OUTBOX_TABLES = OutboxTables(OUTBOX_NAMES)
OUTBOX = Outbox(OUTBOX_TABLES)


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {datetime: UtcDateTime, str: String(255), list[str]: JSON}


class Message(Base):
    """What both kinds of message have."""

    __abstract__ = True
    kind: str

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    account_id: Mapped[UUID] = mapped_column(index=True)
    channel_id: Mapped[UUID]
    template_id: Mapped[UUID]
    status: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))

    def facts(self, *names: str, **more: object) -> dict[str, Any]:
        """These fields as the payload of an event."""
        return {name: getattr(self, name) for name in names} | more


class GroupMessage(Message):
    """One message to everybody in some groups of contacts."""

    __tablename__ = "group_messages"
    kind = "group_message"

    contact_group_ids: Mapped[list[str]]
    total_recipients: Mapped[int]
    scheduled_at: Mapped[datetime | None]


class ScheduledMessage(Message):
    """A message for later, once or again and again."""

    __tablename__ = "scheduled_messages"
    kind = "scheduled_message"

    send_type: Mapped[str]
    scheduled_at: Mapped[datetime]
    timezone: Mapped[str]
    is_recurring: Mapped[bool]
    recurrence_rule: Mapped[str | None]
    recurrence_end_at: Mapped[datetime | None]
    next_trigger_at: Mapped[datetime | None]
    """None while nothing will be sent: paused or cancelled."""

"""Messages: a request writes the message and its event, and is done."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, StringConstraints
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.event_logger.tables import Message
from outrider import DomainEvent, EventId, Outbox

Channel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,40}$")]
# Anything but control characters, of which PostgreSQL cannot store the first.
MessageText = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$"
    ),
]


class NewMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    channel: Channel
    text: MessageText


class MessageView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    channel: str
    text: str
    sent_at: datetime


def message_router(sessions: async_sessionmaker[AsyncSession], outbox: Outbox) -> APIRouter:
    router = APIRouter(prefix="/messages", tags=["messages"])

    @router.post("", status_code=201)
    async def send(data: NewMessage) -> MessageView:
        """The answer means: it is stored. Showing it is the relay's business, now or later."""
        message = Message(**data.model_dump())
        async with sessions.begin() as session:
            session.add(message)
            await session.flush()
            outbox.record(session, _sent(message))
        return MessageView.model_validate(message)

    @router.get("")
    async def newest(
        channel: Annotated[Channel | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> list[MessageView]:
        wanted = select(Message).order_by(Message.sent_at.desc(), Message.id).limit(limit)
        if channel is not None:
            wanted = wanted.where(Message.channel == channel)
        async with sessions() as session:
            return [MessageView.model_validate(each) for each in await session.scalars(wanted)]

    return router


def _sent(message: Message) -> DomainEvent:
    """The channel is the aggregate: who waits for each answer finds the messages in this order.

    The id of the outbox row is in the payload too, for clients that drop what they have seen and
    look nowhere else.
    """
    event_id = EventId.new()
    facts = {
        "event_id": event_id,
        "message_id": message.id,
        "channel": message.channel,
        "text": message.text,
        "sent_at": message.sent_at,
    }
    return DomainEvent("message.sent", "channel", message.channel, facts, event_id=event_id)

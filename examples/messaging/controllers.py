"""The business: what may become of a message, and which events say that it did.

A controller knows its session and the request's bus, and nothing of outbox, relay or broker.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy import select

from outrider import DomainEvent
from outrider.integrations.fastapi import RequestEvents

from . import schemas
from .dependencies import RequestSession
from .models import GroupMessage, Message, ScheduledMessage
from .schedule import Schedule

M = TypeVar("M", bound=Message)


class MessageController(Generic[M]):
    """What is the same for both kinds of message."""

    model: type[M]
    moves: frozenset[tuple[str, str]]
    """From which state to which other a message may go."""

    def __init__(self, session: RequestSession, bus: RequestEvents) -> None:
        self._session, self._bus = session, bus

    async def get(self, message_id: UUID) -> M:
        return await self._find(message_id)

    async def list(self, page: schemas.Page) -> Sequence[M]:
        newest = select(self.model).order_by(self.model.created_at.desc(), self.model.id)
        if page.account_id:
            newest = newest.where(self.model.account_id == page.account_id)
        return (await self._session.scalars(newest.limit(page.limit).offset(page.offset))).all()

    async def _find(self, message_id: UUID, *, lock: bool = False) -> M:
        """Who holds the lock changes the message alone, so events come in the order of commits."""
        message = await self._session.get(self.model, message_id, with_for_update=lock or None)
        if message is None:
            raise HTTPException(404, "there is no such message")
        return message

    async def _add(self, message: M) -> M:
        self._session.add(message)
        await self._session.flush()
        return message

    def _move(self, message: M, status: str) -> bool:
        """Whether the state really is another now."""
        before = message.status
        if status == before:
            return False
        if (before, status) not in self.moves:
            raise HTTPException(409, f"a {before} message cannot become {status}")
        message.status = status
        return True

    def _emit(self, event: str, message: M, payload: dict[str, Any]) -> None:
        kind = message.kind
        self._bus.emit(DomainEvent(f"{kind}.{event}", kind, message.id, payload))


class GroupMessageController(MessageController[GroupMessage]):
    model = GroupMessage
    moves = frozenset({("draft", "queued"), ("draft", "cancelled"), ("queued", "cancelled")})
    created = (
        *("id", "account_id", "channel_id", "template_id", "status"),
        *("contact_group_ids", "total_recipients", "scheduled_at"),
    )

    async def create(self, data: schemas.NewGroupMessage) -> GroupMessage:
        message = await self._add(GroupMessage(**data.model_dump(), status="draft"))
        self._emit("created", message, message.facts(*self.created))
        return message

    async def update(self, message_id: UUID, data: schemas.GroupMessageChanges) -> GroupMessage:
        message = await self._find(message_id, lock=True)
        before, changes = message.status, dict(data)
        status = str(changes.pop("status", before))
        if changes and before != "draft":
            raise HTTPException(409, f"a {before} message can no longer be changed")
        for name, value in changes.items():
            setattr(message, name, value)
        if self._move(message, status):
            facts = message.facts("id", "account_id", "status", previous_status=before)
            self._emit(status, message, facts)
        return message


class ScheduledMessageController(MessageController[ScheduledMessage]):
    model = ScheduledMessage
    moves = frozenset(
        {
            *(("pending", "paused"), ("paused", "pending")),
            *(("pending", "cancelled"), ("paused", "cancelled")),
        }
    )
    schedule = ("scheduled_at", "timezone", "is_recurring", "recurrence_rule", "next_trigger_at")
    created = (
        *("id", "account_id", "channel_id", "template_id", "send_type", "status"),
        *schedule,
    )

    async def create(self, data: schemas.NewScheduledMessage) -> ScheduledMessage:
        message = ScheduledMessage(**data.model_dump(), status="pending")
        message.next_trigger_at = _next_trigger(message)
        await self._add(message)
        self._emit("created", message, message.facts(*self.created))
        return message

    async def update(
        self, message_id: UUID, data: schemas.ScheduledMessageChanges
    ) -> ScheduledMessage:
        """One event for each request: of the status, if that changed, or else of the schedule."""
        message = await self._find(message_id, lock=True)
        before, changes = message.status, dict(data)
        status = str(changes.pop("status", before))
        if changes and before == "cancelled":
            raise HTTPException(409, "a cancelled message can no longer be changed")
        changed = _reschedule(message, changes)
        moved = self._move(message, status)
        if changed or moved:
            message.next_trigger_at = _next_trigger(message) if status == "pending" else None
        if moved:
            facts = message.facts("id", "account_id", "status", previous_status=before)
            if status == "pending":
                self._emit("resumed", message, facts | message.facts("next_trigger_at"))
            else:
                self._emit(status, message, facts)
        elif changed:
            facts = message.facts("id", "account_id", *self.schedule, changed_fields=changed)
            self._emit("updated", message, facts)
        return message


def _reschedule(message: ScheduledMessage, changes: dict[str, Any]) -> list[str]:
    """The fields that have another value now."""
    before = Schedule.model_validate(message)
    try:
        after = Schedule.model_validate(before.model_dump() | changes)
    except ValidationError as problem:
        raise RequestValidationError(problem.errors()) from None
    changed = sorted(name for name, value in after if value != getattr(before, name))
    for name in changed:
        setattr(message, name, getattr(after, name))
    return changed


def _next_trigger(message: ScheduledMessage) -> datetime:
    due = Schedule.model_validate(message).next_trigger(datetime.now(UTC))
    if due is None:
        reason = "nothing of this schedule lies in the future"
        raise RequestValidationError([{"loc": ("body",), "msg": reason, "type": "value_error"}])
    return due

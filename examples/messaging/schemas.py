"""What the API takes and gives; wrong input is refused here, with the reason."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from .schedule import Moment, Rule, Schedule, Zone

NOTHING_ELSE = ConfigDict(extra="forbid")

GroupStatus = Literal["draft", "queued", "cancelled"]
ScheduledStatus = Literal["pending", "paused", "cancelled"]
ContactGroup = Annotated[str, Field(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
ContactGroups = Annotated[list[ContactGroup], Field(min_length=1, max_length=1000)]
Recipients = Annotated[int, Field(ge=0, le=1_000_000_000)]


class NewGroupMessage(BaseModel):
    model_config = NOTHING_ELSE

    account_id: UUID
    channel_id: UUID
    template_id: UUID
    contact_group_ids: ContactGroups
    total_recipients: Recipients = 0
    scheduled_at: Moment | None = None


@with_config(NOTHING_ELSE)
class GroupMessageChanges(TypedDict, total=False):
    """What is not sent stays as it is."""

    status: GroupStatus
    template_id: UUID
    contact_group_ids: ContactGroups
    total_recipients: Recipients
    scheduled_at: Moment | None


class NewScheduledMessage(Schedule):
    account_id: UUID
    channel_id: UUID
    template_id: UUID
    send_type: Literal["single", "group"] = "single"


@with_config(NOTHING_ELSE)
class ScheduledMessageChanges(TypedDict, total=False):
    """What is not sent stays as it is; together it must make a schedule."""

    status: ScheduledStatus
    scheduled_at: Moment
    timezone: Zone
    is_recurring: bool
    recurrence_rule: Rule | None
    recurrence_end_at: Moment | None


class _View(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    account_id: UUID
    channel_id: UUID
    template_id: UUID
    created_at: datetime


class GroupMessageView(_View):
    status: GroupStatus
    contact_group_ids: list[UUID]
    total_recipients: int
    scheduled_at: datetime | None


class ScheduledMessageView(_View):
    status: ScheduledStatus
    send_type: str
    scheduled_at: datetime
    timezone: str
    is_recurring: bool
    recurrence_rule: str | None
    recurrence_end_at: datetime | None
    next_trigger_at: datetime | None


class Page(BaseModel):
    """Which messages of a list; the newest come first."""

    model_config = NOTHING_ELSE

    account_id: UUID | None = None
    limit: int = Field(default=50, ge=1, le=100)
    offset: int = Field(default=0, ge=0, le=1_000_000)


class Refusal(BaseModel):
    """Why the answer is no."""

    detail: str

"""The routes, each in the same order: controller, then events and commit, then the answer."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from .controllers import GroupMessageController, ScheduledMessageController
from .dependencies import RequestTransaction
from .schemas import (
    GroupMessageChanges,
    GroupMessageView,
    NewGroupMessage,
    NewScheduledMessage,
    Page,
    Refusal,
    ScheduledMessageChanges,
    ScheduledMessageView,
)

GroupMessages = Annotated[GroupMessageController, Depends()]
ScheduledMessages = Annotated[ScheduledMessageController, Depends()]

NO_MESSAGE: dict[int | str, Any] = {404: {"model": Refusal}}
NO_MOVE: dict[int | str, Any] = {**NO_MESSAGE, 409: {"model": Refusal}}

group_messages = APIRouter(prefix="/group-messages", tags=["group messages"])
scheduled_messages = APIRouter(prefix="/scheduled-messages", tags=["scheduled messages"])


@group_messages.post("", status_code=201)
async def create_group_message(
    data: NewGroupMessage, controller: GroupMessages, transaction: RequestTransaction
) -> GroupMessageView:
    message = await controller.create(data)
    await transaction.commit()
    return GroupMessageView.model_validate(message)


@group_messages.patch("/{message_id}", responses=NO_MOVE)
async def update_group_message(
    message_id: UUID,
    data: GroupMessageChanges,
    controller: GroupMessages,
    transaction: RequestTransaction,
) -> GroupMessageView:
    message = await controller.update(message_id, data)
    await transaction.commit()
    return GroupMessageView.model_validate(message)


@group_messages.get("/{message_id}", responses=NO_MESSAGE)
async def get_group_message(message_id: UUID, controller: GroupMessages) -> GroupMessageView:
    return GroupMessageView.model_validate(await controller.get(message_id))


@group_messages.get("")
async def list_group_messages(
    page: Annotated[Page, Query()], controller: GroupMessages
) -> list[GroupMessageView]:
    return [GroupMessageView.model_validate(message) for message in await controller.list(page)]


@scheduled_messages.post("", status_code=201)
async def create_scheduled_message(
    data: NewScheduledMessage, controller: ScheduledMessages, transaction: RequestTransaction
) -> ScheduledMessageView:
    message = await controller.create(data)
    await transaction.commit()
    return ScheduledMessageView.model_validate(message)


@scheduled_messages.patch("/{message_id}", responses=NO_MOVE)
async def update_scheduled_message(
    message_id: UUID,
    data: ScheduledMessageChanges,
    controller: ScheduledMessages,
    transaction: RequestTransaction,
) -> ScheduledMessageView:
    message = await controller.update(message_id, data)
    await transaction.commit()
    return ScheduledMessageView.model_validate(message)


@scheduled_messages.get("/{message_id}", responses=NO_MESSAGE)
async def get_scheduled_message(
    message_id: UUID, controller: ScheduledMessages
) -> ScheduledMessageView:
    return ScheduledMessageView.model_validate(await controller.get(message_id))


@scheduled_messages.get("")
async def list_scheduled_messages(
    page: Annotated[Page, Query()], controller: ScheduledMessages
) -> list[ScheduledMessageView]:
    messages = await controller.list(page)
    return [ScheduledMessageView.model_validate(message) for message in messages]

"""The HTTP side: what comes in is checked here, and what is refused has a reason."""

from typing import Annotated
from uuid import UUID

from dishka.integrations.fastapi import DishkaRoute, FromDishka
from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, StringConstraints
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from examples.accounts.account import AccountRole, AccountUnitOfWork, EmailTaken, SignUpHandler
from examples.accounts.core import CoreUnitOfWork
from outrider import OutboxRecord

# Visible ASCII on both sides of one @; the same address in capitals is the same address.
Email = Annotated[
    str, StringConstraints(to_lower=True, max_length=254, pattern="^[!-?A-~]+@[!-?A-~]+$")
]
# Anything but control characters, of which PostgreSQL cannot store the first.
DisplayName = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$"
    ),
]

router = APIRouter(route_class=DishkaRoute)


class SignUp(BaseModel):
    model_config = ConfigDict(extra="forbid")

    email: Email
    display_name: DisplayName


class View(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class AccountView(View):
    id: UUID
    email: str
    role: AccountRole


class ProfileView(View):
    account_id: UUID
    display_name: str


class FailedEventView(View):
    """No payload: who looks here may not be meant to know the people."""

    id: UUID
    event_type: str
    aggregate_id: str
    retry_count: int
    last_error: str | None


class Refusal(BaseModel):
    """Why the answer is no."""

    detail: str


@router.post("/accounts", status_code=201, responses={409: {"model": Refusal}})
async def sign_up(data: SignUp, handler: FromDishka[SignUpHandler]) -> AccountView:
    try:
        account = await handler.handle(data.email, data.display_name)
    except EmailTaken:
        raise HTTPException(409, "there is an account with this e-mail address") from None
    return AccountView.model_validate(account)


@router.get("/accounts/{account_id}", responses={404: {"model": Refusal}})
async def get_account(account_id: UUID, unit_of_work: FromDishka[AccountUnitOfWork]) -> AccountView:
    account = await unit_of_work.get(account_id)
    if account is None:
        raise HTTPException(404, "there is no such account")
    return AccountView.model_validate(account)


@router.get("/profiles/{account_id}", responses={404: {"model": Refusal}})
async def get_profile(account_id: UUID, unit_of_work: FromDishka[CoreUnitOfWork]) -> ProfileView:
    profile = await unit_of_work.get(account_id)
    if profile is None:
        raise HTTPException(404, "there is no such profile, or not yet")
    return ProfileView.model_validate(profile)


@router.get("/failed-events")
async def list_failed_events(session: FromDishka[AsyncSession]) -> list[FailedEventView]:
    """What a person must look at: events that ran out of attempts."""
    failed = select(OutboxRecord).filter_by(status="failed").order_by("position").limit(100)
    return [FailedEventView.model_validate(event) for event in await session.scalars(failed)]

"""The HTTP side: what comes in is checked here, and what is refused has a reason."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Header, HTTPException, Request
from pydantic import BaseModel, ConfigDict, StringConstraints
from sqlalchemy import select

from examples.decisions.dashboard import DashboardEntry
from examples.decisions.database import UnitOfWork
from examples.decisions.sessions import (
    ChangeSession,
    CreateSession,
    DecisionSession,
    NoSuchSession,
    SessionIsArchived,
)


async def _unit_of_work(request: Request) -> Any:
    return request.app.state.unit_of_work


USER_HEADER = "X-User-ID"
UserId = Annotated[
    str,
    Header(alias=USER_HEADER, pattern="^[A-Za-z0-9._-]{1,64}$", description="A gateway's word."),
]
RequestUnitOfWork = Annotated[UnitOfWork, Depends(_unit_of_work)]
# Anything but control characters, of which PostgreSQL cannot store the first.
Title = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"
    ),
]


class NewSession(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: Title


class SessionChanges(BaseModel):
    """What is not sent stays as it is."""

    model_config = ConfigDict(extra="forbid")

    title: Title | None = None
    archived: Literal[True] | None = None


class View(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    title: str
    archived: bool


class SessionView(View):
    id: UUID
    created_at: datetime


class EntryView(View):
    session_id: UUID
    events: int
    changed_at: datetime


class Refusal(BaseModel):
    """Why the answer is no."""

    detail: str


router = APIRouter()
REFUSALS: dict[int | str, Any] = {404: {"model": Refusal}, 409: {"model": Refusal}}


@router.post("/sessions", status_code=201)
async def create_session(
    data: NewSession, user_id: UserId, unit_of_work: RequestUnitOfWork
) -> SessionView:
    session = await CreateSession(unit_of_work).handle(user_id, data.title)
    return SessionView.model_validate(session)


@router.patch("/sessions/{session_id}", responses=REFUSALS)
async def change_session(
    session_id: UUID, data: SessionChanges, user_id: UserId, unit_of_work: RequestUnitOfWork
) -> SessionView:
    change = ChangeSession(unit_of_work)
    try:
        session = await change.handle(
            user_id, session_id, title=data.title, archive=data.archived is True
        )
    except NoSuchSession:
        raise HTTPException(404, "you have no such session") from None
    except SessionIsArchived:
        raise HTTPException(409, "the session is archived, and keeps its title") from None
    return SessionView.model_validate(session)


@router.get("/sessions")
async def list_sessions(user_id: UserId, unit_of_work: RequestUnitOfWork) -> list[SessionView]:
    newest = select(DecisionSession).filter_by(user_id=user_id)
    newest = newest.order_by(DecisionSession.created_at.desc()).limit(100)
    async with unit_of_work() as transaction:
        return [SessionView.model_validate(row) for row in await transaction.scalars(newest)]


@router.get("/dashboard")
async def show_dashboard(user_id: UserId, unit_of_work: RequestUnitOfWork) -> list[EntryView]:
    """What the events have told so far: a moment behind the sessions, or more."""
    latest = select(DashboardEntry).filter_by(user_id=user_id)
    latest = latest.order_by(DashboardEntry.changed_at.desc()).limit(100)
    async with unit_of_work() as transaction:
        return [EntryView.model_validate(row) for row in await transaction.scalars(latest)]

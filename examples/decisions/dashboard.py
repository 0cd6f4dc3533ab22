"""The dashboard: a table to read from, kept up to date by events alone."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column

from examples.decisions.database import Base
from examples.decisions.events import SessionArchived, SessionCreated, SessionRenamed
from outrider import EventHandler, EventMetadata, Handlers, IdempotentHandler, SqlInbox

handlers = Handlers()


class DashboardEntry(Base):
    __tablename__ = "dashboard"

    session_id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(index=True)
    title: Mapped[str]
    archived: Mapped[bool] = mapped_column(default=False)
    events: Mapped[int] = mapped_column(default=1)
    """Would show at once that an event took effect twice."""
    changed_at: Mapped[datetime]


class NotAuthorized(Exception):
    """Whoever caused the event had no right to; it is kept for a person to look at."""


@handlers.handles(SessionCreated)
async def show_session(
    event: SessionCreated, metadata: EventMetadata, transaction: AsyncSession
) -> None:
    _check_authority(metadata, owner=event.user_id)
    transaction.add(
        DashboardEntry(
            session_id=event.session_id,
            user_id=event.user_id,
            title=event.title,
            changed_at=event.occurred_at,
        )
    )


@handlers.handles(SessionRenamed)
async def show_title(
    event: SessionRenamed, metadata: EventMetadata, transaction: AsyncSession
) -> None:
    entry = await _changed(event, metadata, transaction)
    entry.title = event.title


@handlers.handles(SessionArchived)
async def show_archived(
    event: SessionArchived, metadata: EventMetadata, transaction: AsyncSession
) -> None:
    entry = await _changed(event, metadata, transaction)
    entry.archived = True


def projection(engine: AsyncEngine) -> list[tuple[str, EventHandler]]:
    """The handlers above, each taking effect once: its mark and its entry commit together."""
    inbox = SqlInbox(async_sessionmaker(engine))
    return [(event_type, IdempotentHandler(handler, inbox)) for event_type, handler in handlers]


async def _changed(
    event: SessionRenamed | SessionArchived, metadata: EventMetadata, transaction: AsyncSession
) -> DashboardEntry:
    entry = await transaction.get(DashboardEntry, event.session_id)
    if entry is None:
        raise NotAuthorized("nobody's session")
    _check_authority(metadata, owner=entry.user_id)
    entry.events += 1
    entry.changed_at = event.occurred_at
    return entry


def _check_authority(metadata: EventMetadata, owner: str) -> None:
    """Not only the API can write to a stream, so what comes from there is not simply believed."""
    if metadata.user_id is None or metadata.user_id != owner:
        raise NotAuthorized("not the owner's doing")

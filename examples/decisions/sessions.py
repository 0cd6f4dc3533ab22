"""Decision sessions and their use cases: each saves a session and stores what happened to it."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from examples.decisions.database import Base, UnitOfWork
from examples.decisions.events import SessionArchived, SessionCreated, SessionRenamed
from outrider import Outbox

OUTBOX = Outbox()


class DecisionSession(Base):
    __tablename__ = "decision_sessions"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    user_id: Mapped[str] = mapped_column(index=True)
    title: Mapped[str]
    archived: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))


class NoSuchSession(Exception):
    """There is none, or it is somebody else's, which is nobody's business."""


class SessionIsArchived(Exception):
    """It keeps the title that it has."""


class CreateSession:
    def __init__(self, unit_of_work: UnitOfWork) -> None:
        self._unit_of_work = unit_of_work

    async def handle(self, user_id: str, title: str) -> DecisionSession:
        session = DecisionSession(id=uuid4(), user_id=user_id, title=title)
        created = SessionCreated(session_id=session.id, user_id=user_id, title=title)
        async with self._unit_of_work() as transaction:
            transaction.add(session)
            OUTBOX.record(transaction, created)
        return session


class ChangeSession:
    """A new title, the end of all changes, or both; what changes nothing raises no event."""

    def __init__(self, unit_of_work: UnitOfWork) -> None:
        self._unit_of_work = unit_of_work

    async def handle(
        self, user_id: str, session_id: UUID, *, title: str | None = None, archive: bool = False
    ) -> DecisionSession:
        async with self._unit_of_work() as transaction:
            session = await _locked(transaction, user_id, session_id)
            if title is not None and title != session.title:
                if session.archived:
                    raise SessionIsArchived
                session.title = title
                OUTBOX.record(transaction, SessionRenamed(session_id=session_id, title=title))
            if archive and not session.archived:
                session.archived = True
                OUTBOX.record(transaction, SessionArchived(session_id=session_id))
        return session


async def _locked(transaction: AsyncSession, user_id: str, session_id: UUID) -> DecisionSession:
    """Until the commit: what is decided by its state stays true, and is told in this order."""
    session = await transaction.get(DecisionSession, session_id, with_for_update=True)
    if session is None or session.user_id != user_id:
        raise NoSuchSession
    return session

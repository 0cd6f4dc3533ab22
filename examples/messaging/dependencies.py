"""What a request is given: its session, its user, and the one way to commit."""

from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header, Request
from sqlalchemy.ext.asyncio import AsyncSession

from outrider.integrations.fastapi import RequestEvents, RequestMetadata

from .models import OUTBOX


async def _open_session(request: Request) -> AsyncIterator[AsyncSession]:
    """What was not committed when the request ends, for whatever reason, is rolled back.

    Closing is not enough: SQLite stays in a transaction whose commit has failed.
    """
    async with request.app.state.sessions() as session:
        try:
            yield session
        finally:
            await session.rollback()


RequestSession = Annotated[AsyncSession, Depends(_open_session)]
UserId = Annotated[UUID, Header(alias="X-User-ID", description="A gateway would vouch for it.")]


class Transaction:
    """The last step of every request that changes something."""

    def __init__(
        self,
        session: RequestSession,
        bus: RequestEvents,
        metadata: RequestMetadata,
        user_id: UserId,
    ) -> None:
        self._session, self._bus = session, bus
        self._context = {"user_id": user_id, "request_id": metadata.correlation_id}

    async def commit(self) -> None:
        """Messages and events in one transaction; relays are woken up once it is through."""
        await OUTBOX.flush(self._session, self._bus, **self._context)
        await self._session.commit()


RequestTransaction = Annotated[Transaction, Depends()]

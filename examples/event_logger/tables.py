"""The tables of this application, and those of its outbox beside them."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy import Text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outrider import OutboxNames, OutboxTables, UtcDateTime
from outrider.admin import schema

SINK = "stream"
OUTBOX_TABLES = OutboxTables(OutboxNames(table="event_outbox"))


class Base(DeclarativeBase):
    pass


class Message(Base):
    __tablename__ = "messages"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    channel: Mapped[str] = mapped_column(Text, index=True)
    text: Mapped[str] = mapped_column(Text)
    sent_at: Mapped[datetime] = mapped_column(UtcDateTime, default=lambda: datetime.now(UTC))


class BlockedWord(Base):
    __tablename__ = "blocked_words"

    word: Mapped[str] = mapped_column(Text, primary_key=True)


async def create_tables(engine: AsyncEngine) -> None:
    """Both in one transaction: the outbox begins with a lock, so that of several processes that
    start at once the first makes all tables, and the others find them."""
    async with engine.begin() as connection:
        await connection.run_sync(schema.upgrade, OUTBOX_TABLES.names)
        await connection.run_sync(Base.metadata.create_all)

"""Blocked words: a stream that refuses some events, so that there are failures to repair."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.event_logger.tables import BlockedWord
from outrider import BrokerUnavailable, EventEnvelope
from outrider.brokers import ACCEPTED, HELD_BACK, Outcome, Refused, raise_unless_accepted
from outrider.stream import StreamPublisher

Word = Annotated[str, Path(pattern="^[a-z]{1,40}$")]


class ModeratedStream(StreamPublisher):
    """Refuses messages with a blocked word; the list is in the database, so that the relays of
    all processes have the same."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession]) -> None:
        self._sessions = sessions

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        raise_unless_accepted(list(_judge(envelopes, await self._blocked())))

    async def _blocked(self) -> Collection[str]:
        try:
            async with self._sessions() as session:
                return (await session.scalars(select(BlockedWord.word))).all()
        except (SQLAlchemyError, OSError) as error:  # no fault of these events
            raise BrokerUnavailable("the list of blocked words cannot be read") from error

    def __str__(self) -> str:
        return "moderated live stream"


def _judge(envelopes: Sequence[EventEnvelope], words: Collection[str]) -> Iterator[Outcome]:
    """What follows a refused message of its channel waits, or it would overtake it."""
    stuck = set[str]()
    for envelope in envelopes:
        text = str(envelope.payload["text"]).lower()
        if envelope.aggregate_id in stuck:
            yield HELD_BACK
        elif any(word in text for word in words):
            stuck.add(envelope.aggregate_id)
            yield Refused("the message has a blocked word")
        else:
            yield ACCEPTED


def moderation_router(sessions: async_sessionmaker[AsyncSession]) -> APIRouter:
    router = APIRouter(prefix="/blocked-words", tags=["moderation"])

    @router.get("")
    async def blocked_words() -> list[str]:
        async with sessions() as session:
            words = select(BlockedWord.word).order_by(BlockedWord.word).limit(1000)
            return list(await session.scalars(words))

    @router.put("/{word}", status_code=204)
    async def block(word: Word) -> None:
        with suppress(IntegrityError):  # somebody else has just done it
            async with sessions.begin() as session:
                await session.merge(BlockedWord(word=word))

    @router.delete("/{word}", status_code=204)
    async def allow(word: Word) -> None:
        """What failed because of it stays failed until somebody asks for another try."""
        async with sessions.begin() as session:
            await session.execute(delete(BlockedWord).where(BlockedWord.word == word))

    return router

"""An event that waits for its inbox: the cause and the cure are told once, and while it lasts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from outrider import (
    DomainEvent,
    EventConsumer,
    OutboxNames,
    OutboxTables,
    SqlInbox,
    create_all,
)
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler
from tests.support.until import until


async def test_missing_inbox_table_is_told_once_with_its_cure_and_does_not_blame_the_handler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    broker, handler, sessions = MemoryBroker(), RecordingHandler(), async_sessionmaker(engine)
    attempts: list[AsyncSession] = []

    def session() -> AsyncSession:
        attempts.append(sessions())
        return attempts[-1]

    names = OutboxNames(processed="handled")
    inbox = SqlInbox(session, OutboxTables(names))
    consumer = EventConsumer(broker.source(), [("thing.changed", handler)], inbox=inbox)
    event = DomainEvent("thing.changed", "thing", "a", {}).to_envelope()
    cure = "the inbox's table handled is missing; run `outrider schema apply --processed handled`"

    with caplog.at_level(logging.WARNING, "outrider.consumer"):
        async with consumer:
            await broker.publisher().publish(event)
            await until(lambda: len(attempts) >= 3)
            assert cure in (consumer.problem or "")
            await create_all(engine, names)
            await until(lambda: bool(handler.handled))
            await until(lambda: consumer.problem is None)
    await engine.dispose()

    [told] = [r.getMessage() for r in caplog.records if r.name == "outrider.consumer"]
    assert told.startswith("inbox, database or broker unavailable, the event waits ")
    assert cure in told

"""An INSERT into the outbox that fails: no payload in its error, whatever the engine and driver."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outrider import DomainEvent, Outbox
from outrider.store.schema.tables import OutboxTables
from tests.support.canary import CANARY
from tests.support.databases import create_database

outbox = Outbox(wake_up=False)
SYNC_DRIVERS = ["postgresql+psycopg", "sqlite"]


def events(number: int) -> list[DomainEvent]:
    return [DomainEvent("card.added", "card", n, {"number": CANARY}) for n in range(number)]


async def record(engine: AsyncEngine, through: str, number: int) -> None:
    if through == "session":
        async with AsyncSession(engine) as session, session.begin():
            outbox.record(session, *events(number))
    else:
        async with engine.begin() as connection:
            outbox.record(connection, *events(number))


def record_without_async(engine: Engine, through: str, number: int) -> None:
    if through == "session":
        with Session(engine) as session, session.begin():
            outbox.record(session, *events(number))
    else:
        with engine.begin() as connection:
            outbox.record(connection, *events(number))


def spoiling(dialect: str) -> str:
    """PostgreSQL then quotes the row in its DETAIL, SQLite just refuses."""
    if dialect == "postgresql":
        return "ALTER TABLE outbox ADD CHECK (event_type <> 'card.added')"
    return "ALTER TABLE outbox RENAME COLUMN payload TO content"


def told(error: DBAPIError) -> str:
    """Everything that a log, a tracker or a debugger prints of the error."""
    below = error.orig.__cause__ if error.orig else None
    return "".join(
        [*traceback.format_exception(error), repr(error), repr(vars(error)), repr(below)]
    )


@pytest.mark.parametrize("number", [1, 20])
@pytest.mark.parametrize("through", ["session", "connection"])
async def test_failed_insert_shows_no_payload(
    engine: AsyncEngine, number: int, through: str
) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(spoiling(engine.dialect.name)))

    with pytest.raises(DBAPIError) as caught:
        await record(engine, through, number)

    assert "INSERT INTO" in str(caught.value)
    assert CANARY not in told(caught.value)


@pytest.fixture(params=SYNC_DRIVERS)
def sync_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    else:
        url = create_database(request.getfixturevalue("services"))
        made = create_engine(url.replace("postgresql", request.param, 1))
    OutboxTables().metadata.create_all(made)
    return made


@pytest.mark.parametrize("number", [1, 20])
@pytest.mark.parametrize("through", ["session", "connection"])
def test_failed_insert_of_a_sync_engine_shows_no_payload(
    sync_engine: Engine, number: int, through: str
) -> None:
    with sync_engine.begin() as connection:
        connection.execute(text(spoiling(sync_engine.dialect.name)))

    with pytest.raises(DBAPIError) as caught:
        record_without_async(sync_engine, through, number)
    sync_engine.dispose()

    assert "INSERT INTO" in str(caught.value)
    assert CANARY not in told(caught.value)


async def test_error_that_the_caller_was_handling_keeps_its_text(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(spoiling(engine.dialect.name)))
    own = ValueError("first\nsecond")

    try:
        raise own
    except ValueError:
        with pytest.raises(DBAPIError):
            await record(engine, "session", 1)

    assert str(own) == "first\nsecond"

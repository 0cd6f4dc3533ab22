"""What is no event is refused when it is recorded, by the name of the field, and leaves no row."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outrider import InvalidEvent, Outbox
from tests.support.bad_events import BAD_EVENTS
from tests.support.faults.scoreboard import Scoreboard

pytestmark = pytest.mark.faults


@pytest.mark.fault("E4", "E5", "E6", "E7", "E8", "E10", "T2", line="S-9")
async def test_bad_input_is_refused_in_the_caller_and_the_rest_of_it_is_committed(
    database: AsyncEngine, scoreboard: Scoreboard
) -> None:
    refused, outbox = 0, Outbox()

    async with AsyncSession(database) as session, session.begin():
        await session.execute(text("INSERT INTO business VALUES ('kept')"))
        for make, message in BAD_EVENTS.values():
            with pytest.raises(InvalidEvent, match=message):
                outbox.record(session, make())
            refused += 1

    async with database.connect() as connection:
        rows = await connection.scalar(text("SELECT count(*) FROM outbox"))
        kept = await connection.scalar(text("SELECT count(*) FROM business"))
    case = database.dialect.name
    scoreboard.note("S-9", case=case, faults=refused, passed=len(BAD_EVENTS) - refused, rows=rows)
    assert (rows, kept) == (0, 1)

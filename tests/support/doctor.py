"""Runs `outrider doctor` on a database with one event."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from click.testing import CliRunner

from outrider import DomainEvent, Outbox, create_all
from outrider.cli.app import app
from tests.support.canary import CANARY
from tests.support.databases import Database


def prepare(database: Database) -> None:
    async def work() -> None:
        engine = database.async_engine()
        await create_all(engine)
        async with engine.begin() as connection:
            Outbox(wake_up=False).record(connection, DomainEvent("t.a", "t", "1", {"x": CANARY}))
        await engine.dispose()

    asyncio.run(work())


def doctor(**environment: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(app, ["doctor", "--json"], env=environment, catch_exceptions=False)
    assert CANARY not in done.output
    return done.exit_code, json.loads(done.stdout)["checks"]

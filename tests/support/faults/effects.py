"""The consumer's database: one row for each event that took effect."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

import asyncpg
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.store.schema.migrate import create_all
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.flow import Flow
from tests.support.limits import SEED
from tests.support.processes.effects_app import EFFECTS


async def effects_database(services: Services) -> str:
    """Create the consumer's database, with its inbox and the table of effects."""
    url = make_url(create_database(services)).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(url)
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.execute(text(EFFECTS))
    await engine.dispose()
    return url.render_as_string(hide_password=False)


async def effects_in(url: str) -> list[tuple[UUID, str, int]]:
    link = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return [
            tuple(r)
            for r in await link.fetch("SELECT id, aggregate, n FROM effects ORDER BY number")
        ]
    finally:
        await link.close()


def assert_once_and_in_order(flow: Flow, effects: list[tuple[UUID, str, int]]) -> None:
    ids = [event_id for event_id, _, _ in effects]
    again = len(ids) - len(set(ids))
    missing, unexpected = flow.writers.committed - set(ids), set(ids) - flow.writers.committed
    per_aggregate = defaultdict(list)
    for _, aggregate, number in effects:
        per_aggregate[aggregate].append(number)
    reordered = [a for a, numbers in per_aggregate.items() if numbers != sorted(numbers)]
    print(f"OUTRIDER_SEED={SEED}: {len(ids)} effects, {again} again, {len(missing)} missing")
    assert (again, len(missing), len(unexpected), reordered) == (0, 0, 0, [])

"""Every screen answers from indexes and in bounded steps, however large the table is.

Five million rows with OUTRIDER_FULL=1, and the times are printed; fewer otherwise. What is held
against a limit is the work, in pages of the database, not the clock of a busy machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.pages.pages import page_of

ROWS = 5_000_000 if os.environ.get("OUTRIDER_FULL") else 400_000
MOST_PAGES = 60_000 if os.environ.get("OUTRIDER_FULL") else 15_000
FILL = """
INSERT INTO outbox (id, lane, aggregate_key, event_type, aggregate_type, aggregate_id, payload,
    metadata, occurred_at, created_at, status, delivery_number, published_at, next_retry_at,
    last_error)
SELECT gen_random_uuid(), (key % 64 + 64) % 64, key, 'thing.' || n % 20, 'thing', a::text,
    jsonb_build_object('note', repeat('x', 200)),
    jsonb_build_object('correlation_id', md5(n::text), 'causation_id', gen_random_uuid()),
    at, at, status,
    CASE WHEN status = 'published' THEN n END, CASE WHEN status = 'published' THEN at END,
    CASE WHEN status = 'pending' AND n % 50 = 0 THEN now() + interval '1 hour' END,
    CASE WHEN status = 'failed' THEN 'Error' || n % 7 END
FROM (SELECT n, n % 50000 AS a, hashint8extended(n % 50000, 0) AS key,
             now() - (CAST(:rows AS bigint) - n) * interval '10 ms' AS at,
             CASE WHEN n % 500 = 7 THEN 'failed' WHEN n > CAST(:rows AS bigint) * 0.8 THEN 'pending'
                  ELSE 'published' END AS status
      FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n) AS made
ORDER BY n
"""
PAGES = [
    "/",
    "/events",
    "/events?before={middle}",
    "/events?status=pending",
    "/events?status=pending&sink=default&event_type=thing.3",
    "/events?status=retrying",
    "/events?status=failed",
    "/events?status=failed&event_type=thing.7&error=Error3",
    "/events?status=failed&event_type=none.such",
    "/events?status=failed&sink=none",
    "/events?status=retrying&event_type=none.such",
    "/events?status=pending&event_type=none.such",
    "/events?status=pending&until=2000-01-01T00:00:00Z",
    "/events?status=pending&before={middle}",
    "/events?status=published",
    "/events?status=discarded",
    "/events?event_type=thing.*",
    "/events?event_type=none.such",
    "/events?sink=default&aggregate_type=thing&aggregate_id=77",
    "/events?sink=default&aggregate_type=thing&aggregate_id=77&status=pending",
    "/events?id={id}",
    "/events?until=2000-01-01T00:00:00Z",
    "/events/{id}",
    "/events/{id}/caused",
    "/failures",
    "/relays",
    "/inbox",
    "/audit",
]


@pytest.fixture
async def big(services: Services) -> AsyncIterator[AsyncEngine]:
    url = create_database(services).replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    try:
        await _fill(engine)
        yield engine
    finally:
        await engine.dispose()


async def _fill(engine: AsyncEngine) -> None:
    async with engine.connect() as db:
        await db.execution_options(isolation_level="AUTOCOMMIT")
        for statement in schema.statements("postgresql", OutboxNames()):
            await db.execute(text(statement))
        step = ROWS // 10
        for first in range(1, ROWS, step):
            given = {"rows": ROWS, "first": first, "last": first + step - 1}
            await db.execute(text(FILL), given)
        await db.execute(text("VACUUM ANALYZE outbox"))


async def test_every_screen_reads_a_bounded_part_of_a_large_table(
    big: AsyncEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, Any]] = []
    event.listen(
        big.sync_engine,
        "before_cursor_execute",
        lambda _db, _cursor, statement, values, _context, _many: asked.append((statement, values)),
    )
    async with big.connect() as db:
        query = "SELECT id, position FROM outbox WHERE position = :half"
        found = (await db.execute(text(query), {"half": ROWS // 2})).one()
    too_much, times = [], {}

    async with page_of(big) as page:
        for path in PAGES:
            asked.clear()
            began = time.perf_counter()
            answer = await page.get(path.format(id=found.id, middle=found.position))
            times[path] = time.perf_counter() - began
            assert answer.status_code == 200, path
            for statement, values in asked:
                too_much += await _excess(big, path, statement, values)

    with capsys.disabled():
        for path, seconds in times.items():
            print(f"{seconds * 1000:8.0f} ms  {path}")
    assert too_much == []


async def _excess(engine: AsyncEngine, path: str, statement: str, values: Any) -> list[str]:
    if not statement.lstrip().startswith("SELECT"):
        return []
    async with engine.connect() as db:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        plan = (await db.exec_driver_sql(explain, values)).scalar_one()
    root = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    read = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    problems = [f"{path}: {read} pages: {statement}"] if read > MOST_PAGES else []
    if _walks(root):
        problems.append(f"{path}: walks the whole table: {statement}")
    return problems


def _walks(plan: dict[str, Any]) -> bool:
    here = plan["Node Type"] == "Seq Scan" and plan["Relation Name"] == "outbox"
    return here or any(_walks(part) for part in plan.get("Plans", []))

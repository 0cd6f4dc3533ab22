"""Claiming from a large table whose settled rows cannot be vacuumed yet.

Ten million pending and a million just settled with OUTRIDER_FULL=1; a hundredth of that otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outrider.store.postgres import statements as postgres_sql
from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.scoreboard import Scoreboard

pytestmark = pytest.mark.faults

PENDING = 10_000_000 if os.environ.get("OUTRIDER_FULL") else 100_000
SETTLED = PENDING // 10
NAMES = OutboxNames()
FILL = f"""
INSERT INTO outbox (id, lane, aggregate_key, event_type, aggregate_type, aggregate_id, payload,
    occurred_at)
SELECT gen_random_uuid(), (key % 64 + 64) % 64, key, 'thing.happened', 'thing', a::text,
    '{{}}', now()
FROM (SELECT n, n % 50000 AS a, hashint8extended(n % 50000, 0) AS key
      FROM generate_series(1, {PENDING + SETTLED}) AS n) AS made
ORDER BY n
"""  # noqa: S608
FEW = FILL.replace(str(PENDING + SETTLED), "5000")
SETTLE = (
    "UPDATE outbox SET status = 'published', published_at = now(), delivery_number = position "
    "WHERE status = 'pending' AND position <= %s"
)
MODES = ["auto", "force_custom_plan", "force_generic_plan"]
LANES = "ARRAY[" + ",".join(map(str, range(64))) + "]::smallint[]"


@pytest.fixture(scope="module")
def database(services: Services) -> Iterator[psycopg.Connection[Any]]:
    """Filled, partly settled, and with a forgotten transaction that pins the vacuum horizon."""
    url = create_database(services)
    with psycopg.connect(url, autocommit=True) as link, psycopg.connect(url) as forgotten:
        for statement in schema.statements("postgresql", NAMES):
            link.execute(statement.encode())
        link.execute(FILL.encode())
        link.execute(b"VACUUM ANALYZE outbox")
        forgotten.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute(b"SELECT 1 FROM outbox LIMIT 1")
        link.execute(SETTLE.encode(), [SETTLED])
        yield link


def plan_of(link: psycopg.Connection[Any], floor: int, mode: str) -> str:
    """As a prepared statement is planned: for these values, once for all, or by PostgreSQL's choice
    after it has seen some."""
    link.execute(f"SET plan_cache_mode = {mode}".encode())
    types = "(text, smallint[], bigint[], int, int)"
    link.execute(f"PREPARE claim {types} AS {postgres_sql.Statements(NAMES).claim}".encode())
    floors = f"array_fill({floor}::bigint, ARRAY[64])"
    call = f"EXECUTE claim ('default', {LANES}, {floors}, 16, 100)"
    explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {call}"
    for _ in range(6 if mode == "auto" else 0):
        link.execute(call.encode())
    rows = link.execute(explain.encode()).fetchall()
    link.execute(b"DEALLOCATE claim")
    return "\n".join(row[0] for row in rows)


@pytest.mark.fault("D11", "Z1")
@pytest.mark.parametrize("mode", MODES)
def test_claim_keeps_to_its_indexes(database: psycopg.Connection[Any], mode: str) -> None:
    found = plan_of(database, 0, mode)

    assert "Index Scan using outbox_pending" in found
    assert "using outbox_waiting" in found
    assert "Seq Scan" not in found
    assert "outbox_pkey" not in found


@pytest.mark.fault("D11", "Z1", line="S-12")
@pytest.mark.parametrize("mode", MODES)
def test_floor_spares_the_claim_what_vacuum_has_left(
    database: psycopg.Connection[Any], mode: str, scoreboard: Scoreboard
) -> None:
    found = plan_of(database, SETTLED + 1, mode)

    took = float(re.search(r"Execution Time: ([\d.]+)", found)[1])  # type: ignore[index]
    if mode == "auto":  # what a relay meets; a plan for any limit looks dear, and is compiled first
        scoreboard.note("S-12", pending=PENDING, claim_ms=took)
    pages = int(re.search(r"shared hit=(\d+)", found)[1])  # type: ignore[index]
    assert pages < 64 * 16 * 12, f"{pages} pages for 1,024 candidates"
    assert "Index Scan using outbox_pending" in found


@pytest.mark.fault("D11")
def test_plans_hold_though_nothing_was_pending_when_the_table_was_analyzed(
    services: Services,
) -> None:
    """The planner then takes an index of pending rows for empty, whatever dead ones it has."""
    url = create_database(services)
    with psycopg.connect(url, autocommit=True) as link, psycopg.connect(url) as forgotten:
        for statement in schema.statements("postgresql", NAMES):
            link.execute(statement.encode())
        link.execute(b"ALTER TABLE outbox SET (autovacuum_enabled = off)")
        forgotten.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute(b"SELECT 1 FROM outbox LIMIT 1")
        link.execute(FEW.encode())
        link.execute(SETTLE.encode(), [PENDING])
        link.execute(b"ANALYZE outbox")
        link.execute(FEW.encode())

        claim = plan_of(link, 0, "force_custom_plan")
        keys, zeros = "ARRAY[1, 2]::bigint[]", "ARRAY[0, 0]::bigint[]"
        late = postgres_sql.Statements(NAMES).late.replace("$1", keys).replace("$2", zeros)
        found = link.execute(f"EXPLAIN {late.replace('$3', keys)}".encode()).fetchall()

    assert "using outbox_waiting" in claim
    assert "using outbox_aggregate" in "\n".join(row[0] for row in found)

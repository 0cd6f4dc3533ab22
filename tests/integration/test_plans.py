"""The statements a relay lives on use the indexes made for them, on a table with a million rows."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from outrider.store.postgres import statements as postgres_sql
from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.store.sqlite import statements as sqlite_sql
from outrider.testing.services import Services
from tests.support.databases import create_database

NAMES = OutboxNames()
MILLION = """
INSERT INTO outbox (id, lane, aggregate_key, event_type, aggregate_type, aggregate_id, payload,
    occurred_at, status, delivery_number, published_at, next_retry_at)
SELECT gen_random_uuid(), (key % 64 + 64) % 64, key, 'thing.happened', 'thing', a::text, '{}',
    now(), CASE WHEN n <= 800000 THEN 'published' ELSE 'pending' END,
    CASE WHEN n <= 800000 THEN n END,
    CASE WHEN n <= 800000 THEN now() - interval '8 days' END,
    CASE WHEN n > 800000 AND a < 10 THEN now() + interval '1 hour' END
FROM (SELECT n, n % 5000 AS a, hashint8extended(n % 5000, 0) AS key
      FROM generate_series(1, 1000000) AS n) AS made
ORDER BY n
"""


@pytest.fixture(scope="module")
def psql(services: Services) -> Any:
    url = create_database(services)
    server = services.postgres

    def run(sql: str) -> str:
        command = (server.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url)
        return server.run(*command, stdin=sql)

    run(";".join(schema.statements("postgresql", NAMES)))
    run(MILLION)
    run("VACUUM ANALYZE outbox")
    return run


def explained(statement: str, *values: str) -> str:
    for number, value in reversed(list(enumerate(values, 1))):
        statement = statement.replace(f"${number}", value)
    return statement


def claim(lanes: int, per_lane: int, limit: int) -> str:
    mine = ",".join(map(str, range(lanes)))
    floors = ",".join("0" for _ in range(lanes))
    statement = postgres_sql.Statements(NAMES).claim
    arrays = (f"ARRAY[{mine}]", f"ARRAY[{floors}]")
    return explained(statement, "'default'", *arrays, str(per_lane), str(limit))


def plan(psql: Any, sql: str) -> str:
    return str(psql(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {sql}"))


def test_claim_walks_the_pending_index_and_probes_by_aggregate(psql: Any) -> None:
    found = plan(psql, claim(lanes=64, per_lane=16, limit=100))

    assert "Index Scan using outbox_pending" in found
    assert "using outbox_waiting" in found
    assert "Seq Scan" not in found


def test_late_commits_are_looked_for_by_aggregate(psql: Any) -> None:
    statement = postgres_sql.Statements(NAMES).late
    keys = "ARRAY(SELECT hashint8extended(n, 0) FROM generate_series(1, 100) AS n)"
    zeros = "array_fill(0::bigint, ARRAY[100])"

    found = plan(psql, explained(statement, keys, zeros, "array_fill(900000::bigint, ARRAY[100])"))

    assert "using outbox_aggregate" in found
    assert "Seq Scan" not in found


def test_claim_reads_no_more_than_it_was_asked_for(psql: Any) -> None:
    found = plan(psql, claim(lanes=64, per_lane=4, limit=100))

    pages = int(re.search(r"shared hit=(\d+)", found)[1])  # type: ignore[index]
    assert pages < 64 * 4 * 12, f"{pages} pages for 256 candidates of a million rows"


def test_claim_leaves_out_aggregates_that_wait_and_keeps_the_order(psql: Any) -> None:
    lines = psql(claim(lanes=64, per_lane=100, limit=500)).splitlines()

    claimed = [line.split("|") for line in lines]
    positions = [int(row[0]) for row in claimed]
    assert len(claimed) == 500
    assert positions == sorted(positions)
    assert not {row[6] for row in claimed} & {str(n) for n in range(10)}


@pytest.mark.fault("Z2")
def test_forgetting_reads_the_oldest_delivered_only(psql: Any) -> None:
    statement = postgres_sql.Statements(NAMES).delete_published
    sql = explained(statement, "'default'", "1000", "'7 days'")

    found = plan(psql, f"{sql}")

    assert "Index Scan using outbox_delivered" in found
    assert "Seq Scan" not in found
    assert int(psql("SELECT count(*) FROM outbox WHERE status = 'published'")) == 799_000
    assert int(psql("SELECT count(*) FROM outbox WHERE status = 'pending'")) == 200_000


def test_forgetting_looks_at_few_rows_even_if_none_is_old_enough(psql: Any) -> None:
    statement = postgres_sql.Statements(NAMES).delete_published
    sql = explained(statement, "'default'", "1000", "'30 days'")

    found = plan(psql, sql)

    pages = int(re.search(r"shared hit=(\d+)", found)[1])  # type: ignore[index]
    assert pages < 3_000


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path_factory.mktemp("plans") / "outbox.db")
    for statement in schema.statements("sqlite", NAMES):
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO outbox (id, lane, aggregate_key, event_type, aggregate_type, aggregate_id,"
        " payload, occurred_at, status, delivery_number, published_at)"
        " VALUES (?, ?, ?, 'thing.happened', 'thing', ?, '{}', '2026', ?, ?, ?)",
        (
            (f"{n:032x}", n % 64, n % 5000, n % 5000, "published", n, "2020-01-01 00:00:00.000000")
            if n <= 80_000
            else (f"{n:032x}", n % 64, n % 5000, n % 5000, "pending", None, None)
            for n in range(1, 100_001)
        ),
    )
    connection.execute("ANALYZE")
    yield connection
    connection.close()


def test_claim_on_sqlite_uses_the_indexes(sqlite: sqlite3.Connection) -> None:
    statement = sqlite_sql.Statements(NAMES).claim
    lanes = json.dumps(list(range(64)))
    values = {"sink": "default", "lanes": lanes, "limit": 100, "now": "2026-01-01"}

    steps = [row[3] for row in sqlite.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    claimed = sqlite.execute(statement, values).fetchall()

    assert any("USING INDEX outbox_pending" in step for step in steps)
    assert any("outbox_waiting" in step or "outbox_aggregate" in step for step in steps)
    assert not any("TEMP B-TREE" in step for step in steps)
    assert [row[0] for row in claimed] == list(range(80_001, 80_101))


def test_forgetting_on_sqlite_uses_the_index(sqlite: sqlite3.Connection) -> None:
    statement = sqlite_sql.Statements(NAMES).delete_published
    values = {"sink": "default", "limit": 1000, "wait": "-7 days"}

    steps = [row[3] for row in sqlite.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    forgotten = sqlite.execute(statement, values).rowcount

    assert any("outbox_delivered" in step for step in steps)
    assert forgotten == 1000

"""What the store says to PostgreSQL. The plans of claiming and forgetting are tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.dialects.postgresql import asyncpg

from outrider.sql.rows import LANES
from outrider.sql.tables import FAILED, PENDING, PUBLISHED

if TYPE_CHECKING:
    from outrider.sql.names import OutboxNames

# $1 is the sink everywhere. Time is clock_timestamp(), since now() stands still in a transaction.

PREPARE = f"""
INSERT INTO {{lanes}} (sink, lane) SELECT $1, n FROM generate_series(0, {LANES - 1}) AS n
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants; the names are quoted
PREPARE_SINK = "INSERT INTO {sinks} (sink) VALUES ($1) ON CONFLICT DO NOTHING"

# $2 relay, $3 name, $4 duration
RENEW = """
WITH alive AS (
    INSERT INTO {relays} (id, name, sink, started_at, expires_at)
    VALUES ($2, $3, $1, clock_timestamp(), clock_timestamp() + $4)
    ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
)
UPDATE {lanes} SET expires_at = clock_timestamp() + $4
WHERE sink = $1 AND owner = $2
RETURNING lane, token
"""
FORGET_DEAD_RELAYS = "DELETE FROM {relays} WHERE sink = $1 AND expires_at < clock_timestamp()"
LIVE_RELAYS = "SELECT id FROM {relays} WHERE sink = $1 AND expires_at >= clock_timestamp()"

# $2 relay, $3 duration, $4 how many
TAKE = """
WITH free AS (
    SELECT lane, owner IS NOT NULL AS orphaned FROM {lanes}
    WHERE sink = $1 AND (owner IS NULL OR expires_at < clock_timestamp())
    ORDER BY lane
    LIMIT $4
    FOR UPDATE SKIP LOCKED
)
UPDATE {lanes} AS taken
SET owner = $2, token = token + 1, expires_at = clock_timestamp() + $3
FROM free WHERE taken.sink = $1 AND taken.lane = free.lane
RETURNING taken.lane, taken.token, free.orphaned
"""
# $2 relay, $3 lanes or null for all
GIVE = """
UPDATE {lanes} SET owner = NULL, expires_at = NULL
WHERE sink = $1 AND owner = $2 AND ($3::smallint[] IS NULL OR lane = ANY($3))
"""
GOODBYE = "DELETE FROM {relays} WHERE sink = $1 AND id = $2"

# A batch holds the oldest pending row of every aggregate it touches. Each lane is read from the
# position its owner has settled up to, so what vacuum has not removed yet is not walked over. An
# aggregate is left out from the row on that waits for its retry. The moment must be one for all
# rows: with a clock that runs on, a row could be let through whose predecessor still waits.
# OFFSET 0 keeps the planner from making a join of what should be one lookup per row. The arrays
# come by a SELECT so that it cannot know how long they are: it would plan anew for every short one.
# $2 lanes, $3 their floors, $4 most of one lane, $5 most in all
CLAIM = f"""
SELECT position, id, lane, event_type, event_version, aggregate_type, aggregate_id, occurred_at,
    created_at, retry_count, crash_count, max_retries, aggregate_key,
    payload::text, metadata::text
FROM unnest((SELECT $2::smallint[]), (SELECT $3::bigint[])) AS mine (own_lane, floor)
CROSS JOIN LATERAL (
    SELECT * FROM {{outbox}} AS candidate
    WHERE status = '{PENDING}' AND sink = $1 AND lane = own_lane AND position >= floor
        AND NOT EXISTS (
            SELECT FROM {{outbox}} AS waiting
            WHERE next_retry_at > statement_timestamp()
                AND aggregate_key = candidate.aggregate_key AND position <= candidate.position
            OFFSET 0
        ){{parked}}
    ORDER BY position
    LIMIT $4
) AS claimed
ORDER BY position
LIMIT $5
"""  # noqa: S608 - constants; the names are quoted
# Has one of these aggregates an older pending row below the floor, one that was committed late? It
# can only lie above what was settled of its aggregate, since whoever changes an aggregate waits for
# whoever changed it before. $1 keys, $2 settled up to, $3 floors
LATE = f"""
SELECT EXISTS (
    SELECT FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS wanted (key, low, high)
    WHERE EXISTS (
        SELECT FROM {{outbox}}
        WHERE published_at IS NULL AND status <> '{FAILED}' AND aggregate_key = wanted.key
            AND position > wanted.low AND position < wanted.high
        OFFSET 0
    )
)
"""  # noqa: S608
PARKED = f"""
        AND NOT EXISTS (
            SELECT FROM {{outbox}} AS failed
            WHERE status = '{FAILED}' AND aggregate_key = candidate.aggregate_key
            OFFSET 0
        )"""

# Locking the lanes makes whoever takes them over wait until this is done, or be seen by it.
_HELD = """
held AS (
    SELECT lane FROM {lanes} AS leased
    JOIN unnest($3::smallint[], $4::bigint[]) AS mine (lane, token) USING (lane, token)
    WHERE sink = $1 AND owner = $2
    FOR SHARE OF leased
)"""
# $2 relay, $3 lanes, $4 tokens, $5 positions, $6 their lanes. The counter's row is locked until
# the commit, so numbers become visible in their order: readers can follow them with a cursor.
ACCEPT = f"""
WITH {_HELD}, counted AS (
    UPDATE {{sinks}} SET delivered = delivered + cardinality($5::bigint[])
    WHERE sink = $1
    RETURNING delivered - cardinality($5::bigint[]) AS before
)
UPDATE {{outbox}} AS settled
SET status = '{PUBLISHED}', published_at = clock_timestamp(), next_retry_at = NULL,
    delivery = counted.before + done.number
FROM counted, unnest($5::bigint[], $6::smallint[]) WITH ORDINALITY AS done (at, lane, number)
WHERE settled.position = done.at AND settled.status = '{PENDING}'
    AND done.lane IN (SELECT lane FROM held)
"""  # noqa: S608
# … $5 positions, $6 their lanes, $7 waits or null for failed, $8 reasons
REFUSE = f"""
WITH {_HELD}
UPDATE {{outbox}} AS settled
SET retry_count = retry_count + 1, last_error = refused.reason,
    next_retry_at = clock_timestamp() + refused.wait,
    status = CASE WHEN refused.wait IS NULL THEN '{FAILED}' ELSE status END
FROM unnest($5::bigint[], $6::smallint[], $7::interval[], $8::text[])
    AS refused (at, lane, wait, reason)
WHERE settled.position = refused.at AND settled.status = '{PENDING}'
    AND refused.lane IN (SELECT lane FROM held)
"""  # noqa: S608
# … $5 positions, $6 their lanes, $7 by how many
SUSPECT = f"""
WITH {_HELD}
UPDATE {{outbox}} AS settled SET crash_count = crash_count + $7::integer
FROM unnest($5::bigint[], $6::smallint[]) AS tried (at, lane)
WHERE settled.position = tried.at AND tried.lane IN (SELECT lane FROM held)
"""  # noqa: S608

# $2 the most to count: on a large table all of them would take long
LEFT = f"""
SELECT count(*) FROM (
    SELECT FROM {{outbox}} WHERE status = '{PENDING}' AND sink = $1 LIMIT $2
) AS pending
"""  # noqa: S608

# Only the oldest few are looked at, so that a step is short whatever the table's size.
# $2 how many, $3 age
FORGET = f"""
DELETE FROM {{outbox}} WHERE position IN (
    SELECT position FROM (
        SELECT position, published_at FROM {{outbox}}
        WHERE sink = $1 AND delivery IS NOT NULL
        ORDER BY delivery
        LIMIT $2
    ) AS oldest
    WHERE published_at < clock_timestamp() - $3::interval
) AND status = '{PUBLISHED}'
"""  # noqa: S608


class Sql:
    """All statements with the names filled in."""

    def __init__(self, names: OutboxNames, *, park: bool = False) -> None:
        dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]
        tables = ("outbox", "lanes", "relays", "sinks")
        quoted = {table: names.quoted(table, dialect) for table in tables}
        quoted["parked"] = PARKED.format(**quoted) if park else ""

        def fill(template: str) -> str:
            return template.format(**quoted)

        self.prepare = [fill(PREPARE), fill(PREPARE_SINK)]
        self.renew = fill(RENEW)
        self.forget_dead_relays = fill(FORGET_DEAD_RELAYS)
        self.live_relays = fill(LIVE_RELAYS)
        self.take = fill(TAKE)
        self.give = fill(GIVE)
        self.goodbye = fill(GOODBYE)
        self.claim = fill(CLAIM)
        self.late = fill(LATE)
        self.accept = fill(ACCEPT)
        self.refuse = fill(REFUSE)
        self.suspect = fill(SUSPECT)
        self.left = fill(LEFT)
        self.forget = fill(FORGET)

"""SQL that claims pending rows. Tests look at its query plans."""

from __future__ import annotations

from outrider.store.schema.tables import FAILED, PENDING

# A batch holds the oldest pending row of every aggregate it touches. Each lane is scanned from its
# low-water mark, so that index entries which vacuum has not removed yet are not scanned again. An
# aggregate is left out from the row on that waits for its retry. statement_timestamp() is the same
# for all rows: with a clock that runs on, a row could be claimed whose predecessor still waits.
# OFFSET 0 keeps the planner from making a join of what should be one lookup per row. The arrays
# come from a SELECT so that the planner does not know their length, and makes one plan for all.
# $1 sink, $2 lanes, $3 their scan starts, $4 most of one lane, $5 most in all
CLAIM = f"""
SELECT position, id, lane, event_type, event_version, aggregate_type, aggregate_id, occurred_at,
    created_at, retry_count, crash_count, max_retries, aggregate_key,
    payload::text, metadata::text
FROM unnest((SELECT $2::smallint[]), (SELECT $3::bigint[])) AS mine (own_lane, scan_start)
CROSS JOIN LATERAL (
    SELECT * FROM {{outbox}} AS candidate
    WHERE status = '{PENDING}' AND sink = $1 AND lane = own_lane AND position >= scan_start
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
# Has one of these aggregates an older pending row below the scan start, committed late? It can only
# lie above what was settled of its aggregate, since a transaction that changes an aggregate waits
# for the one that changed it before. $1 keys, $2 settled up to, $3 scan starts
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

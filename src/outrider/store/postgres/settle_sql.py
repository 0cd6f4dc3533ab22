"""SQL that settles claimed rows, fenced by the tokens of their lanes."""

from __future__ import annotations

from outrider.store.schema.tables import (
    FAILED,
    MAX_ATTEMPT_CHARS,
    MAX_ATTEMPTS_KEPT,
    PENDING,
    PUBLISHED,
)

# $1 is the sink everywhere. Time is clock_timestamp(), since now() stands still in a transaction.

# The lanes are locked: a relay that takes one over waits until the settle is done; if it took the
# lane before, the token is stale and the settle changes nothing.
_OWNED = """
owned AS (
    SELECT lane FROM {lanes} AS leased
    JOIN unnest($3::smallint[], $4::bigint[]) AS mine (lane, token) USING (lane, token)
    WHERE sink = $1 AND owner = $2
    FOR SHARE OF leased
)"""
# $2 relay, $3 lanes, $4 tokens, $5 positions, $6 their lanes. The counter's row is locked until
# the commit, so numbers become visible in their order: readers can follow them with a cursor.
ACCEPT = f"""
WITH {_OWNED}, counted AS (
    UPDATE {{sinks}} SET last_delivery_number = last_delivery_number + cardinality($5::bigint[])
    WHERE sink = $1
    RETURNING last_delivery_number - cardinality($5::bigint[]) AS before
)
UPDATE {{outbox}} AS settled
SET status = '{PUBLISHED}', published_at = clock_timestamp(), next_retry_at = NULL,
    delivery_number = counted.before + done.number
FROM counted, unnest($5::bigint[], $6::smallint[]) WITH ORDINALITY AS done (at, lane, number)
WHERE settled.position = done.at AND settled.status = '{PENDING}'
    AND done.lane IN (SELECT lane FROM owned)
"""  # noqa: S608
# … $5 positions, $6 their lanes, $7 waits or null for failed, $8 reasons, $9 whether counted
_ATTEMPTS = f"""
CASE
    WHEN jsonb_typeof(attempts) IS DISTINCT FROM 'array' THEN '[]'
    WHEN jsonb_array_length(attempts) >= {MAX_ATTEMPTS_KEPT} THEN attempts - 0
    ELSE attempts
END || jsonb_build_object(
    'attempt', retry_count + 1, 'at', clock_timestamp(),
    'reason', left(refused.reason, {MAX_ATTEMPT_CHARS})
)"""
REFUSE = f"""
WITH {_OWNED}
UPDATE {{outbox}} AS settled
SET retry_count = retry_count + refused.counted::integer, last_error = refused.reason,
    attempts = CASE WHEN refused.counted THEN {_ATTEMPTS} ELSE attempts END,
    next_retry_at = clock_timestamp() + refused.wait,
    status = CASE WHEN refused.wait IS NULL THEN '{FAILED}' ELSE status END
FROM unnest($5::bigint[], $6::smallint[], $7::interval[], $8::text[], $9::boolean[])
    AS refused (at, lane, wait, reason, counted)
WHERE settled.position = refused.at AND settled.status = '{PENDING}'
    AND refused.lane IN (SELECT lane FROM owned)
"""  # noqa: S608
# … $5 positions, $6 their lanes, $7 by how many
ADJUST_CRASH_COUNT = f"""
WITH {_OWNED}
UPDATE {{outbox}} AS settled SET crash_count = crash_count + $7::integer
FROM unnest($5::bigint[], $6::smallint[]) AS tried (at, lane)
WHERE settled.position = tried.at AND tried.lane IN (SELECT lane FROM owned)
"""  # noqa: S608

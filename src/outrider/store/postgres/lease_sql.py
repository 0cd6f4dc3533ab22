"""SQL that shares the lanes out among relays."""

from __future__ import annotations

from outrider.lanes import LANES

# $1 is the sink everywhere. Time is clock_timestamp(), since now() stands still in a transaction.

VERSION = "SELECT max(version) FROM {version}"
PREPARE = f"""
INSERT INTO {{lanes}} (sink, lane) SELECT $1, n FROM generate_series(0, {LANES - 1}) AS n
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants; the names are quoted
# The counter's row is locked only if something changes: other relays settle meanwhile.
PREPARE_SINK = """
INSERT INTO {sinks} AS known (sink, parks) VALUES ($1, {parks})
ON CONFLICT (sink) DO UPDATE SET parks = excluded.parks WHERE known.parks <> excluded.parks
"""

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
DELETE_DEAD_RELAYS = "DELETE FROM {relays} WHERE sink = $1 AND expires_at < clock_timestamp()"
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
RELEASE = """
UPDATE {lanes} SET owner = NULL, expires_at = NULL
WHERE sink = $1 AND owner = $2 AND ($3::smallint[] IS NULL OR lane = ANY($3))
"""
SIGN_OFF = "DELETE FROM {relays} WHERE sink = $1 AND id = $2"

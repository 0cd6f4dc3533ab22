"""All SQL of the SQLite store. Simpler than PostgreSQL's: SQLite has one writer at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy.dialects.sqlite import aiosqlite

from outrider.store.schema.tables import (
    FAILED,
    MAX_ATTEMPT_CHARS,
    MAX_ATTEMPTS_KEPT,
    PENDING,
    PUBLISHED,
    SQLITE_NOW,
)

if TYPE_CHECKING:
    from outrider.store.schema.names import OutboxNames

# Times are stored as text that sorts by time; :wait is a modifier such as '+10.0 seconds'.
_THEN: Final = "strftime('%Y-%m-%d %H:%M:%f000', 'now', :wait)"

VERSION = "SELECT max(version) FROM {version}"
PREPARE = "INSERT OR IGNORE INTO {lanes} (sink, lane) VALUES (:sink, :lane)"
PREPARE_SINK = """
INSERT INTO {sinks} (sink, parks) VALUES (:sink, {parks})
ON CONFLICT (sink) DO UPDATE SET parks = excluded.parks
"""
HEARTBEAT = f"""
INSERT INTO {{relays}} (id, name, sink, started_at, expires_at)
VALUES (:relay, :name, :sink, {SQLITE_NOW}, {_THEN})
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
"""  # noqa: S608 - constants; the names are quoted
RENEW = f"UPDATE {{lanes}} SET expires_at = {_THEN} WHERE sink = :sink AND owner = :relay"  # noqa: S608
OWN_LANES = "SELECT lane, token FROM {lanes} WHERE sink = :sink AND owner = :relay"
DELETE_DEAD_RELAYS = f"DELETE FROM {{relays}} WHERE sink = :sink AND expires_at < {SQLITE_NOW}"  # noqa: S608
LIVE_RELAYS = "SELECT id FROM {relays} WHERE sink = :sink"
FREE_LANES = f"""
SELECT lane, owner IS NOT NULL FROM {{lanes}}
WHERE sink = :sink AND (owner IS NULL OR expires_at < {SQLITE_NOW}) ORDER BY lane LIMIT :count
"""  # noqa: S608
TAKE = f"""
UPDATE {{lanes}} SET owner = :relay, token = token + 1, expires_at = {_THEN}
WHERE sink = :sink AND lane = :lane
"""  # noqa: S608
RELEASE = """
UPDATE {lanes} SET owner = NULL, expires_at = NULL
WHERE sink = :sink AND owner = :relay
    AND (:lanes IS NULL OR lane IN (SELECT value FROM json_each(:lanes)))
"""
SIGN_OFF = "DELETE FROM {relays} WHERE sink = :sink AND id = :relay"

# As on PostgreSQL, but without low-water marks: SQLite leaves no dead entries in its indexes. The
# time is a parameter, since 'now' is evaluated again for each row.
CLAIM = f"""
SELECT position, id, lane, event_type, event_version, aggregate_type, aggregate_id, occurred_at,
    created_at, retry_count, crash_count, max_retries, aggregate_key, payload, metadata
FROM {{outbox}} AS candidate
WHERE status = '{PENDING}' AND sink = :sink AND lane IN (SELECT value FROM json_each(:lanes))
    AND NOT EXISTS (
        SELECT 1 FROM {{outbox}} AS waiting
        WHERE next_retry_at > :now
            AND aggregate_key = candidate.aggregate_key AND position <= candidate.position
    ){{parked}}
ORDER BY position
LIMIT :limit
"""  # noqa: S608
PARKED = f"""
    AND NOT EXISTS (
        SELECT 1 FROM {{outbox}} AS failed
        WHERE status = '{FAILED}' AND aggregate_key = candidate.aggregate_key
    )"""  # noqa: S608

_OWNED = """EXISTS (
    SELECT 1 FROM {lanes}
    WHERE sink = :sink AND owner = :relay AND lane = :lane AND token = :token
)"""
NEXT_DELIVERY_NUMBERS = """
UPDATE {sinks} SET last_delivery_number = last_delivery_number + :count
WHERE sink = :sink RETURNING last_delivery_number
"""
ACCEPT = f"""
UPDATE {{outbox}} SET status = '{PUBLISHED}', published_at = {SQLITE_NOW}, next_retry_at = NULL,
    delivery_number = :delivery_number
WHERE position = :position AND status = '{PENDING}' AND {_OWNED}
"""  # noqa: S608
_ATTEMPTS = f"""
json_insert(
    CASE
        WHEN json_type(attempts) IS NOT 'array' THEN '[]'
        WHEN json_array_length(attempts) >= {MAX_ATTEMPTS_KEPT} THEN json_remove(attempts, '$[0]')
        ELSE attempts
    END,
    '$[#]',
    json_object(
        'attempt', retry_count + 1, 'at', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
        'reason', substr(:reason, 1, {MAX_ATTEMPT_CHARS})
    )
)"""
REFUSE = f"""
UPDATE {{outbox}} SET retry_count = retry_count + :counted, last_error = :reason,
    attempts = CASE WHEN :counted THEN {_ATTEMPTS} ELSE attempts END,
    next_retry_at = CASE WHEN :wait IS NULL THEN NULL ELSE {_THEN} END,
    status = CASE WHEN :wait IS NULL THEN '{FAILED}' ELSE status END
WHERE position = :position AND status = '{PENDING}' AND {_OWNED}
"""  # noqa: S608
ADJUST_CRASH_COUNT = f"""
UPDATE {{outbox}} SET crash_count = crash_count + :by WHERE position = :position AND {_OWNED}
"""  # noqa: S608
COUNT_PENDING = f"""
SELECT count(*) FROM (
    SELECT 1 FROM {{outbox}} WHERE status = '{PENDING}' AND sink = :sink LIMIT :most
)
"""  # noqa: S608
DELETE_PUBLISHED = f"""
DELETE FROM {{outbox}} WHERE position IN (
    SELECT position FROM (
        SELECT position, published_at FROM {{outbox}}
        WHERE sink = :sink AND delivery_number IS NOT NULL
        ORDER BY delivery_number
        LIMIT :limit
    ) AS oldest
    WHERE published_at < {_THEN}
) AND status = '{PUBLISHED}'
"""  # noqa: S608


class Statements:
    """One attribute per statement, with the table names filled in."""

    def __init__(self, names: OutboxNames, *, park: bool = False) -> None:
        dialect = aiosqlite.dialect()
        tables = ("outbox", "lanes", "relays", "sinks", "version")
        quoted = {table: names.quoted(table, dialect) for table in tables}
        quoted["parked"] = PARKED.format(**quoted) if park else ""
        quoted["parks"] = "1" if park else "0"

        def fill(template: str) -> str:
            return template.format(**quoted)

        self.version = fill(VERSION)
        self.prepare, self.prepare_sink = fill(PREPARE), fill(PREPARE_SINK)
        self.heartbeat, self.renew, self.own_lanes = fill(HEARTBEAT), fill(RENEW), fill(OWN_LANES)
        self.delete_dead_relays = fill(DELETE_DEAD_RELAYS)
        self.live_relays, self.free_lanes = fill(LIVE_RELAYS), fill(FREE_LANES)
        self.take, self.release, self.sign_off = fill(TAKE), fill(RELEASE), fill(SIGN_OFF)
        self.claim, self.next_delivery_numbers, self.accept = (
            fill(CLAIM),
            fill(NEXT_DELIVERY_NUMBERS),
            fill(ACCEPT),
        )
        self.refuse, self.adjust_crash_count, self.delete_published = (
            fill(REFUSE),
            fill(ADJUST_CRASH_COUNT),
            fill(DELETE_PUBLISHED),
        )
        self.count_pending = fill(COUNT_PENDING)

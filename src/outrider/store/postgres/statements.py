"""All SQL of the store with the names of the tables filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.dialects.postgresql import asyncpg

from outrider.store.postgres import claim_sql, lease_sql, maintenance_sql, settle_sql

if TYPE_CHECKING:
    from outrider.store.schema.names import OutboxNames


class Statements:
    """One attribute for each statement."""

    def __init__(self, names: OutboxNames, *, park: bool = False) -> None:
        dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]
        tables = ("outbox", "lanes", "relays", "sinks", "version")
        quoted = {table: names.quoted(table, dialect) for table in tables}
        quoted["parked"] = claim_sql.PARKED.format(**quoted) if park else ""
        quoted["parks"] = "true" if park else "false"

        def fill(template: str) -> str:
            return template.format(**quoted)

        self.version = fill(lease_sql.VERSION)
        self.prepare = [fill(lease_sql.PREPARE), fill(lease_sql.PREPARE_SINK)]
        self.renew = fill(lease_sql.RENEW)
        self.delete_dead_relays = fill(lease_sql.DELETE_DEAD_RELAYS)
        self.live_relays = fill(lease_sql.LIVE_RELAYS)
        self.take = fill(lease_sql.TAKE)
        self.release = fill(lease_sql.RELEASE)
        self.sign_off = fill(lease_sql.SIGN_OFF)
        self.claim = fill(claim_sql.CLAIM)
        self.late = fill(claim_sql.LATE)
        self.accept = fill(settle_sql.ACCEPT)
        self.refuse = fill(settle_sql.REFUSE)
        self.adjust_crash_count = fill(settle_sql.ADJUST_CRASH_COUNT)
        self.count_pending = fill(maintenance_sql.COUNT_PENDING)
        self.delete_published = fill(maintenance_sql.DELETE_PUBLISHED)

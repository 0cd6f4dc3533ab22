"""What can be set, and the one place that turns environment variables into it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider import RelayConfig, read_settings

DEFAULTS = {"DATABASE_URL": "sqlite:///decisions.db", "OUTBOX_POLL_INTERVAL_MS": "100"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """With the defaults everything runs in one process, without any service."""

    database_url: str = field(repr=False)
    """SQLite for trying things, postgresql:// for a service."""
    redis_url: str | None = field(repr=False)
    """If given, `outrider relay` and `outrider consume` deliver; if not, the API's process does."""
    relay: RelayConfig
    """OUTBOX_POLL_INTERVAL_MS, OUTBOX_BATCH_SIZE, OUTBOX_RETENTION_DAYS and the rest."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        given = {name: text for name, text in environment.items() if text}
        found = read_settings({}, DEFAULTS | given)
        return Settings(
            database_url=found.process.database,
            redis_url=given.get("REDIS_URL"),
            relay=found.relay,
        )

"""What can be set, and the one place that turns environment variables into it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider import RelayConfig, read_settings

DEFAULTS = {
    "DATABASE_URL": "sqlite:///event_logger.db",
    "OUTBOX_RETRY": "exponential",
    "OUTBOX_MAX_RETRIES": "4",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """By the names that the `outrider` command knows; see its `config`."""

    database_url: str = field(repr=False)
    """SQLite for trying things, postgresql:// for several web processes."""
    relay: RelayConfig
    """With the defaults an event has failed after four refusals, about seven seconds."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        given = {name: text for name, text in environment.items() if text}
        found = read_settings({}, DEFAULTS | given)
        return Settings(database_url=found.process.database, relay=found.relay)

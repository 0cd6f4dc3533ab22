"""What can be set, and the one place that turns environment variables into it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider import RelayConfig, read_settings

DEFAULTS = {"DATABASE_URL": "sqlite:///accounts.db", "OUTBOX_POLL_INTERVAL": "30"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """By the names that the `outrider` command knows; see its `config`."""

    database_url: str = field(repr=False)
    """SQLite for trying things, postgresql:// for a service."""
    relay: RelayConfig
    """A commit wakes the relay up; it looks by itself only for what a wake-up missed."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        given = {name: text for name, text in environment.items() if text}
        found = read_settings({}, DEFAULTS | given)
        return Settings(database_url=found.process.database, relay=found.relay)

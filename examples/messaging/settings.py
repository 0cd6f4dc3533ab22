"""What can be set, and the one place that turns environment variables into it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider import RelayConfig, read_settings

DEFAULTS = {"DATABASE_URL": "sqlite:///messaging.db"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """With the defaults everything runs in one process, without any service."""

    database_url: str = field(repr=False)
    """SQLite for trying things, postgresql:// for a service."""
    rabbitmq_url: str | None = field(default=None, repr=False)
    """If given, a relay process publishes (see `relay.py`); if not, this process does."""
    exchange: str = "messaging"
    """RABBITMQ_EXCHANGE: where events are published."""
    audit: bool = False
    """MESSAGING_AUDIT=1: a further queue gets every event."""
    relay: RelayConfig = field(default_factory=RelayConfig)
    """OUTBOX_POLL_INTERVAL, OUTBOX_BATCH_SIZE, OUTBOX_MAX_RETRIES, OUTBOX_CLEANUP_DAYS and the
    rest, for the relay of this process and for that of its own."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        given = {name: text for name, text in environment.items() if text}
        found = read_settings({}, DEFAULTS | given)
        return Settings(
            database_url=found.process.database or DEFAULTS["DATABASE_URL"],
            rabbitmq_url=given.get("RABBITMQ_URL"),
            exchange=found.process.destination,
            audit=given.get("MESSAGING_AUDIT") == "1",
            relay=found.relay,
        )

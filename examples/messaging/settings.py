"""What can be set, and the one place that turns environment variables into it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Settings:
    """With the defaults everything runs in one process, without any service."""

    database_url: str = field(default="sqlite:///messaging.db", repr=False)
    """SQLite for trying things, postgresql:// for a service."""
    rabbitmq_url: str | None = field(default=None, repr=False)
    """If given, a relay process (`outrider relay`) delivers; if not, this process does."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        default = Settings()
        return Settings(
            database_url=environment.get("DATABASE_URL") or default.database_url,
            rabbitmq_url=environment.get("RABBITMQ_URL") or None,
        )

"""The settings of a live stream."""

from __future__ import annotations

from collections.abc import Collection  # noqa: TC003 - dataclasses show their types
from dataclasses import dataclass
from datetime import timedelta

from outrider.errors import ConfigurationError
from outrider.events.envelope import EventMetadata

_ABOVE_ZERO = ("poll_interval", "keep_alive", "retry", "send_timeout", "recheck")
_AT_LEAST_ONE = ("max_streams", "window", "window_bytes", "readers", "batch_size")


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """The settings of a StreamManager; the defaults suit a thousand browsers."""

    max_streams: int = 1000
    """The maximum number of clients; further clients must try again later."""
    keep_alive: timedelta = timedelta(seconds=15)
    """How long a stream may send nothing; a short time finds dead connections sooner."""
    retry: timedelta = timedelta(seconds=3)
    """The longest time a client waits before it reconnects. With a short time, clients miss less,
    but all of them reconnect at once after a restart."""
    send_timeout: timedelta = timedelta(seconds=30)
    """How long a client may read nothing before its stream is closed; the client can resume."""
    recheck: timedelta | None = timedelta(minutes=1)
    """How often `authorize` is called again for an open stream; None calls it only once."""
    poll_interval: timedelta = timedelta(seconds=1)
    """How often to poll for new events when no wake-up arrives."""
    window: int = 1000
    """The maximum number of events in memory, shared by all clients. A client that resumes from an
    older event reads the table."""
    window_bytes: int = 16 * 1024 * 1024
    """The maximum memory for these events."""
    readers: int = 4
    """How many clients may read the table at once; more readers load the database more."""
    batch_size: int = 100
    """The maximum number of events read at once."""
    metadata: Collection[str] = ("correlation_id", "causation_id", "added_fields")
    """The metadata fields that clients get; `user_id` only if it is named here."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""
    on_signals: bool = True
    """Whether SIGTERM and SIGINT end all streams at once. Without this, a server waits for open
    responses before it stops the application. Existing signal handlers are called too."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be above 0"
            for name in _ABOVE_ZERO
            if (value := getattr(self, name)) is not None and value <= timedelta(0)
        ]
        problems += [
            f"{name} must be at least 1" for name in _AT_LEAST_ONE if getattr(self, name) < 1
        ]
        unknown = [name for name in self.metadata if name not in EventMetadata.__struct_fields__]
        problems += [f"metadata has no {name!r}" for name in unknown]
        if problems:
            raise ConfigurationError(f"StreamConfig: {'; '.join(problems)}")

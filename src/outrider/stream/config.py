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
    """How a process serves its clients; the defaults suit a thousand browsers."""

    max_streams: int = 1000
    """Most clients at once; more are asked to come again later."""
    keep_alive: timedelta = timedelta(seconds=15)
    """How long a stream may be silent; shorter finds dead connections sooner, and sends more."""
    retry: timedelta = timedelta(seconds=3)
    """At most how long a client waits before it comes again; shorter misses less of what is live,
    and brings back everybody at once after a restart."""
    send_timeout: timedelta = timedelta(seconds=30)
    """How long a client may take no data before its stream is closed; it can resume."""
    recheck: timedelta | None = timedelta(minutes=1)
    """How long a permission is trusted before `authorize` is asked again; None asks once."""
    poll_interval: timedelta = timedelta(seconds=1)
    """How long to wait for a wake-up before looking anyway."""
    window: int = 1000
    """Most events kept in memory, for all clients together; who resumes from before reads the
    table."""
    window_bytes: int = 16 * 1024 * 1024
    """Most payload kept in memory with them."""
    readers: int = 4
    """How many clients may read the table at once; more resume sooner, and load it more."""
    batch_size: int = 100
    """Most events read at once."""
    metadata: Collection[str] = ("correlation_id", "causation_id", "added_fields")
    """What clients see of an event's metadata: not its user, unless named here."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""
    on_signals: bool = True
    """Whether SIGTERM and SIGINT end all streams at once: servers wait for open responses before
    they tell the application to stop. Their own handlers are called as well."""

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

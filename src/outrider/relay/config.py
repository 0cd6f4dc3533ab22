"""How a relay works: batch size, lease, polling, retries, retention."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from outrider.errors import ConfigurationError, name_of
from outrider.observability.failure_reason import DETAILS
from outrider.relay.retry import RetryPolicy, SteppedRetry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config")
_TYPES: Final[dict[str, tuple[type, str]]] = {
    "int": (int, "an int, such as 3"),
    "timedelta": (timedelta, "a timedelta, such as timedelta(seconds=3)"),
    "RetryPolicy": (RetryPolicy, "a retry policy, such as ExponentialRetry()"),
}


def refuse_wrong_types(owner: str, config: DataclassInstance) -> None:
    """Refuse a number or a text where a field needs another type."""
    problems = []
    for each in fields(config):
        annotation, _, optional = str(each.type).partition(" | ")
        value = getattr(config, each.name)
        if annotation not in _TYPES or (optional and value is None):
            continue
        kind, rule = _TYPES[annotation]
        if isinstance(value, type) or not isinstance(value, kind):
            problems.append(f"{each.name} must be {rule}, not {name_of(value)}")
    if problems:
        raise ConfigurationError(f"{owner}: {'; '.join(problems)}")


def config_or_default(config: Config | None, kind: type[Config]) -> Config:
    if config is not None and not isinstance(config, kind):
        raise ConfigurationError(
            f"config takes a {kind.__name__}, got {name_of(config)}: "
            f"write {kind.__name__}(max_retries=3)"
        )
    return kind() if config is None else config


@dataclass(frozen=True, kw_only=True)
class RelayConfig:
    """How a relay works; the defaults suit a service with one relay or a few."""

    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    """The relay's name in logs and on the dashboard, by default the host name and the process id.
    It need not be unique: every start makes a new id."""
    batch_size: int = 100
    """The largest number of events in one batch; every loop has one batch in flight. A larger batch
    is faster, and repeats more events after a crash."""
    batch_bytes: int = 16 * 1024 * 1024
    """The largest number of payload bytes in one batch; bounds memory when events are large."""
    poll_interval: timedelta = timedelta(seconds=5)
    """How long to wait for a wake-up before the relay polls anyway."""
    lease: timedelta = timedelta(seconds=10)
    """How long a dead relay keeps its lanes; a shorter lease is taken over sooner, and is renewed
    more often."""
    loops: int = 2
    """Relay loops in this process, each with its own lanes: one publishes while another claims or
    settles."""
    publish_timeout: timedelta = timedelta(seconds=30)
    """How long the sink may take for one batch."""
    retry: RetryPolicy = field(default_factory=SteppedRetry)
    """The retry policy: how long a refused event waits before it is published again."""
    max_retries: int = 10
    """After so many refusals an event counts as failed. A limit that was recorded with the event
    wins over this one."""
    max_crashes: int = 3
    """How many relays may die while they publish an event before it counts as failed."""
    retention: timedelta | None = timedelta(days=7)
    """How long published events are kept before they are deleted; never keeps them (in Python:
    None)."""
    grace: timedelta = timedelta(seconds=25)
    """How long a stop waits for batches in flight."""
    error_detail: Literal["place", "message", "traceback"] = "place"
    """What the log and last_error tell of an error in your code: place is its class, file, line and
    function; message adds its text, which may quote payloads; traceback adds all lines."""

    def __post_init__(self) -> None:
        refuse_wrong_types("relay", self)
        nothing = timedelta(0)
        problems = [
            f"{name} must be {rule}"
            for name, rule, fine in (
                ("batch_size", "at least 1", self.batch_size >= 1),
                ("batch_bytes", "at least 1", self.batch_bytes >= 1),
                ("poll_interval", "above 0", self.poll_interval > nothing),
                ("lease", "at least 1 second", self.lease >= timedelta(seconds=1)),
                ("loops", "from 1 to 64", 1 <= self.loops <= 64),
                ("publish_timeout", "above 0", self.publish_timeout > nothing),
                ("max_retries", "at least 1", self.max_retries >= 1),
                ("max_crashes", "at least 1", self.max_crashes >= 1),
                ("retention", "at least 0", self.retention is None or self.retention >= nothing),
                ("grace", "at least 0", self.grace >= nothing),
                ("error_detail", " or ".join(DETAILS), self.error_detail in DETAILS),
            )
            if not fine
        ]
        if problems:
            raise ConfigurationError("relay: " + "; ".join(problems))

    @property
    def patience_s(self) -> float:
        """How long a publisher may ignore its cancellation: until the lease ends, at least 1 s."""
        return max(1.0, self.lease.total_seconds() / 3)

    def wait_after(self, attempt: int, max_retries: int | None) -> timedelta | None:
        """How long an event waits after this refusal; None if it was the last that is allowed."""
        if attempt >= (max_retries or self.max_retries):
            return None
        wait = self.retry.delay_after(attempt)
        return self.poll_interval if attempt > 1 and not wait else wait

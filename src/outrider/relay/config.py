"""How a relay works: batch size, lease, polling, retries, retention."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from outrider.errors import ConfigurationError
from outrider.observability.failure_reason import DETAILS
from outrider.relay.retry import RetryPolicy, SteppedRetry


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

"""When to try a refused event again: pure functions of the attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

from outrider.errors import ConfigurationError

_NOW = timedelta(0)


@runtime_checkable
class RetryPolicy(Protocol):
    """How long to wait after the attempt of this number (from 1). The limit is `max_retries`."""

    def delay_after(self, attempt: int, /) -> timedelta: ...


@dataclass(frozen=True, kw_only=True)
class SteppedRetry:
    """Waits that grow by steps; the last step repeats."""

    steps: tuple[tuple[int, timedelta], ...] = (
        (3, _NOW),
        (3, timedelta(seconds=30)),
        (3, timedelta(minutes=5)),
    )
    """How many attempts wait how long. In a relay a wait of zero is one poll interval, except
    after the first attempt: a short hiccup of the sink must not use up all of them."""

    def __post_init__(self) -> None:
        if not self.steps or any(count < 1 or wait < _NOW for count, wait in self.steps):
            raise ConfigurationError("retry: at least one step, each with a count >= 1, wait >= 0")

    def delay_after(self, attempt: int, /) -> timedelta:
        for count, wait in self.steps:
            if attempt <= count:
                return wait
            attempt -= count
        return self.steps[-1][1]


@dataclass(frozen=True, kw_only=True)
class ExponentialRetry:
    """Waits that double up to a cap, spread by chance so that many do not return at once."""

    first: timedelta = timedelta(seconds=1)
    """The wait after the first attempt."""
    cap: timedelta = timedelta(minutes=5)
    """The longest wait; a lower cap tries a sink that is back sooner."""
    jitter: float = 0.2
    """The part of a wait that is left to chance, from 0 to 1."""

    def __post_init__(self) -> None:
        if not (0 <= self.jitter <= 1 and _NOW < self.first <= self.cap):
            raise ConfigurationError("retry: 0 <= jitter <= 1, 0 < first <= cap")

    def delay_after(self, attempt: int, /) -> timedelta:
        # Compared as factors, since a timedelta cannot double for ever.
        factor = min(2.0 ** min(attempt - 1, 60), self.cap / self.first)
        wait = self.first * factor
        return wait * (1 - self.jitter * random.random())  # noqa: S311 - chance, not secrecy

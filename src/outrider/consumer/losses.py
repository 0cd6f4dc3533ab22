"""Losses: messages that a broker deleted before a consumer handled them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A range of messages that nobody will receive any more."""

    first: str
    """Where the range begins, as the broker writes positions."""
    last: str
    count: int | None
    """None if the broker cannot tell."""
    reason: str
    """What happened, and how to prevent it."""


@runtime_checkable
class LossReport(Protocol):
    """A source that notices losses. A source need not have this method."""

    def take_losses(self) -> list[Loss]:
        """What was noticed since the last call."""
        ...

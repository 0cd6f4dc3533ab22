"""What a check-up finds: one thing that was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True)
class Finding:
    """A fault keeps events from being delivered; a warning may lose or delay some."""

    subject: str
    verdict: Literal["fine", "warning", "fault"]
    text: str
    cure: str = ""


@runtime_checkable
class Examinable(Protocol):
    """A publisher that knows what an acknowledgement of its broker is worth."""

    async def examine(self) -> list[Finding]:
        """Look at the settings that decide whether the broker keeps what it acknowledged."""

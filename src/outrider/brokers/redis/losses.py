"""Losses of a group: entries that were deleted from the stream before they were acknowledged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from outrider.consumer.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Sequence

_DELETED: Final = (
    "they were deleted from the stream before they were acknowledged; "
    "raise max_length or max_age of whatever trims the stream"
)
_TRIMMED: Final = (
    "they were trimmed from the stream before the group read them; "
    "raise max_length or max_age of whatever trims the stream, or add consumers"
)


def named(reply: Sequence[Any]) -> dict[bytes, Any]:
    """A reply of names and values by turns."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _as_numbers(entry: bytes) -> tuple[int, int]:
    """An id in a form that compares as the server compares ids."""
    milliseconds, _, sequence = entry.partition(b"-")
    return int(milliseconds), int(sequence or 0)


def count_trimmed(stream: dict[bytes, Any], group: dict[bytes, Any]) -> int:
    """How many entries behind the group's position are gone; replies of XINFO.

    If the oldest entry is behind the position, so are all others, and whatever was ever added and
    is neither there nor read is gone. Before Redis 7.0 the server does not count, and nobody knows.
    """
    added, read = stream.get(b"entries-added"), group.get(b"entries-read")
    if added is None or read is None:
        return 0
    length, oldest = int(stream[b"length"]), stream[b"recorded-first-entry-id"]
    if length and _as_numbers(oldest) <= _as_numbers(group[b"last-delivered-id"]):
        return 0
    return max(0, int(added) - length - int(read))


class Losses:
    """What was noticed and not told yet; neighbouring losses of one kind are told as one."""

    def __init__(self) -> None:
        self._losses: list[Loss] = []

    def take(self) -> list[Loss]:
        losses, self._losses = self._losses, []
        return losses

    def deleted(self, entries: Sequence[bytes] = ()) -> None:
        """Before Redis 7.0 XAUTOCLAIM does not name them."""
        if entries:
            first, last = entries[0].decode(), entries[-1].decode()
            self._add(Loss(first=first, last=last, count=len(entries), reason=_DELETED))

    def trimmed(self, after: bytes, before: bytes, count: int) -> None:
        """A parenthesis excludes the id, as in the commands of Redis: the ids are not known."""
        first, last = f"({after.decode()}", f"({before.decode()}"
        self._add(Loss(first=first, last=last, count=count, reason=_TRIMMED))

    def _add(self, loss: Loss) -> None:
        before = self._losses[-1] if self._losses else None
        if before is not None and before.reason == loss.reason:
            count = (before.count or 0) + (loss.count or 0)
            loss = replace(before, last=loss.last, count=count)
            self._losses.pop()
        self._losses.append(loss)

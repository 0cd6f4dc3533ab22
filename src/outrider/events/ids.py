"""Event ids: UUIDs of version 7, which sort by the time they were made."""

from __future__ import annotations

import os
import threading
import time
from typing import Final
from uuid import UUID, SafeUUID

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_TICKS_PER_MS: Final = 1 << 12

_lock = threading.Lock()
_last_tick = 0


class EventId(UUID):
    """A UUID that `new` makes rise with time; any other UUID serves as an event's id as well."""

    __slots__ = ()

    @classmethod
    def new(cls) -> EventId:
        """A fresh id, larger than every id this process made before."""
        global _last_tick  # noqa: PLW0603 - the order of ids is a promise of the whole process
        with _lock:
            _last_tick = max(time.time_ns() * _TICKS_PER_MS // 1_000_000, _last_tick + 1)
            milliseconds, fraction = divmod(_last_tick, _TICKS_PER_MS)
        random = int.from_bytes(os.urandom(8), "big") >> 2
        return cls._of(milliseconds << 80 | _VERSION_7 | fraction << 64 | _VARIANT | random)

    @classmethod
    def _of(cls, number: int) -> EventId:
        """UUID's own constructor looks at six ways of being called, for longer than all this."""
        made = object.__new__(cls)
        object.__setattr__(made, "int", number)
        object.__setattr__(made, "is_safe", SafeUUID.unknown)
        return made

    @classmethod
    def from_string(cls, text: str) -> EventId:
        try:
            return cls(text)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"not an event id: {text!r} is no UUID") from None

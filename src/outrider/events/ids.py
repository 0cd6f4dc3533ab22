"""Event ids: UUIDs of version 7, which sort by the time of their creation."""

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
    """An id for events. `new` makes a UUIDv7; any other UUID is accepted as an event id too."""

    __slots__ = ()

    @classmethod
    def new(cls) -> EventId:
        """A new id, larger than every id that this process has made before."""
        global _last_tick  # noqa: PLW0603 - ids rise across the whole process
        with _lock:
            _last_tick = max(time.time_ns() * _TICKS_PER_MS // 1_000_000, _last_tick + 1)
            milliseconds, fraction = divmod(_last_tick, _TICKS_PER_MS)
        random = int.from_bytes(os.urandom(8), "big") >> 2
        return cls._from_int(milliseconds << 80 | _VERSION_7 | fraction << 64 | _VARIANT | random)

    @classmethod
    def _from_int(cls, number: int) -> EventId:
        """Skips the constructor of UUID, which takes longer than everything else here."""
        event_id = object.__new__(cls)
        object.__setattr__(event_id, "int", number)
        object.__setattr__(event_id, "is_safe", SafeUUID.unknown)
        return event_id

    @classmethod
    def from_string(cls, text: str) -> EventId:
        try:
            return cls(text)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"not an event id: {text!r} is no UUID") from None

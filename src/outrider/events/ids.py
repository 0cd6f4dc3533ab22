"""Event ids: UUIDs of version 7, which sort by the time of their creation."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any, Final, Self
from uuid import NAMESPACE_URL, UUID, SafeUUID, uuid5

import msgspec

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_TICKS_PER_MS: Final = 1 << 12
_UUID_CHARS: Final = 36
_MAX_CHARS: Final = 255
_FOREIGN: Final = uuid5(NAMESPACE_URL, "https://cloudevents.io/id")

_lock = threading.Lock()
_last_tick = 0


class EventId(UUID):
    """An id for events. `EventId()` makes a UUIDv7; any other UUID is accepted as well."""

    __slots__ = ()

    def __init__(self, hex: str | None = None, **parts: Any) -> None:
        if hex is not None or parts:
            super().__init__(hex, **parts)
        else:
            object.__setattr__(self, "int", _new_number())
            object.__setattr__(self, "is_safe", SafeUUID.unknown)

    @classmethod
    def new(cls) -> EventId:
        """A new id, larger than every id that this process has made before."""
        return cls._from_int(_new_number())

    @classmethod
    def _from_int(cls, number: int) -> Self:
        """Skips the constructor of UUID, which takes longer than everything else here."""
        event_id = object.__new__(cls)
        object.__setattr__(event_id, "int", number)
        object.__setattr__(event_id, "is_safe", SafeUUID.unknown)
        return event_id

    @classmethod
    def from_string(cls, text: str, source: str = "") -> EventId:
        """The id with this text: a UUID, or the id of another producer, which may be any text.

        `source` says which producer that is: two producers may use the same text.
        """
        given: object = text
        if (
            not isinstance(given, str)
            or not 0 < len(given) <= _MAX_CHARS
            or not given.isprintable()
        ):
            raise ValueError(f"an event id must have 1 to {_MAX_CHARS} printable characters")
        if len(text) == _UUID_CHARS:
            with suppress(msgspec.ValidationError):
                return cls._from_int(msgspec.convert(text, UUID).int)
        event_id = ForeignEventId._from_int(uuid5(uuid5(_FOREIGN, source), text).int)
        object.__setattr__(event_id, "text", text)
        object.__setattr__(event_id, "source", source)
        return event_id


class ForeignEventId(EventId):
    """The id of another producer, which is no UUID: it keeps its text and its source.

    As a UUID it is a hash of source and text. So an inbox can store it as the key of its event.
    """

    __slots__ = ("source", "text")
    source: str
    text: str

    def __str__(self) -> str:
        return self.text

    def __getstate__(self) -> object:
        return {"int": self.int, "source": self.source, "text": self.text}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in {"is_safe": SafeUUID.unknown, **state}.items():
            object.__setattr__(self, name, value)


def source_of(event_id: UUID, own: str) -> str:
    """The CloudEvents source of an event: an id of another producer needs that producer's."""
    return (isinstance(event_id, ForeignEventId) and event_id.source) or own


def _new_number() -> int:
    global _last_tick  # noqa: PLW0603 - ids rise across the whole process
    with _lock:
        _last_tick = max(time.time_ns() * _TICKS_PER_MS // 1_000_000, _last_tick + 1)
        milliseconds, fraction = divmod(_last_tick, _TICKS_PER_MS)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return milliseconds << 80 | _VERSION_7 | fraction << 64 | _VARIANT | random

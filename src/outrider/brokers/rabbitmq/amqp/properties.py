"""Message properties as they lie on the wire: read from any producer, and passed on unchanged."""

from __future__ import annotations

import struct
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pamqp import decode

from outrider.brokers.rabbitmq.amqp.frames import short_string

if TYPE_CHECKING:
    from collections.abc import Mapping

# The flag of each property; the broker sends the properties in falling order of their flags.
CONTENT_TYPE, HEADERS, DELIVERY_MODE, EXPIRATION = 1 << 15, 1 << 13, 1 << 12, 1 << 8
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID = 1 << 7, 1 << 6, 1 << 5, 1 << 4
PERSISTENT: Final = b"\x02"
"""The delivery mode of a message that a durable queue stores on disk."""

_BASIC: Final = 60
_ALL: Final = tuple(1 << bit for bit in range(15, 1, -1))
_FIXED_SIZES: Final = {DELIVERY_MODE: 1, 1 << 11: 1, TIMESTAMP: 8}
_OF_EVENTS: Final = CONTENT_TYPE | HEADERS | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP | TYPE

_CONTENT: Final = struct.Struct(">HHQH")
_LENGTH: Final = struct.Struct(">I")
_SECONDS: Final = struct.Struct(">Q")

_LONG: Final = frozenset(b"SxAF")
# How many bytes a value has, by the letter of its type; long ones begin with their length.
_SIZES: Final = {
    ord(letter): size
    for letters, size in (("V\0", 0), ("tbB", 1), ("su", 2), ("Iif", 4), ("D", 5), ("lLdT", 8))
    for letter in letters
} | dict.fromkeys(_LONG)


def event_header(
    content_type: bytes, table: bytes, message_id: bytes, seconds: int, kind: bytes, body_size: int
) -> bytes:
    """The header of a persistent event, in one go because it is the hot path.

    `content_type`, `message_id` and `kind` (the property `type`) are short strings already.
    """
    return b"".join(
        (
            _CONTENT.pack(_BASIC, 0, body_size, _OF_EVENTS),
            content_type,
            _LENGTH.pack(len(table)),
            table,
            PERSISTENT,
            message_id,
            _SECONDS.pack(seconds),
            kind,
        )
    )


def string_header(name: str) -> bytes:
    """The name of a header, and the mark of a string; the value follows as a long string."""
    return short_string(name, "header name") + b"S"


def read_properties(header: bytes) -> dict[int, bytes]:
    """The bytes of each property, by its flag."""
    flags = _CONTENT.unpack_from(header)[3]
    found, at = {}, _CONTENT.size
    for flag in _ALL:
        if flags & flag:
            if flag == HEADERS:
                size = _LENGTH.size + _LENGTH.unpack_from(header, at)[0]
            else:
                size = _FIXED_SIZES.get(flag) or 1 + header[at]
            found[flag] = header[at : at + size]
            at += size
    if at != len(header):
        raise ValueError("no list of properties")
    return found


def write_header(properties: Mapping[int, bytes], body_size: int) -> bytes:
    flags = sum(properties)
    values = (properties[flag] for flag in sorted(properties, reverse=True))
    return _CONTENT.pack(_BASIC, 0, body_size, flags) + b"".join(values)


def read_table(table: bytes) -> dict[bytes, bytes]:
    """Names and values, each value with the letter of its type."""
    found, at, end = {}, _LENGTH.size, len(table)
    while at < end:
        letter = at + 1 + table[at]
        after = letter + 1
        size = _SIZES[table[letter]]
        if size is None:
            size = _LENGTH.size + _LENGTH.unpack_from(table, after)[0]
        after += size
        found[table[at + 1 : letter]] = table[letter:after]
        at = after
    if at > max(end, _LENGTH.size):
        raise ValueError("no table")
    return found


def write_table(entries: Mapping[bytes, bytes]) -> bytes:
    table = b"".join(bytes((len(name),)) + name + value for name, value in entries.items())
    return _LENGTH.pack(len(table)) + table


def string_value(text: str) -> bytes:
    """A value for a table; what Unicode cannot express becomes a question mark."""
    raw = text.encode(errors="replace")
    return b"S" + _LENGTH.pack(len(raw)) + raw


def value_as_text(value: bytes) -> str | None:
    """A value of a table as text; None if it is a list, a table or raw bytes."""
    if value[0] == ord("S"):
        return value[1 + _LENGTH.size :].decode()
    if value[0] in _LONG:
        return None  # not looked into: tables may be nested deeper than Python recurses
    match decode.embedded_value(value)[1]:
        case bool() as found:
            return str(found).lower()
        case datetime() as found:
            return found.isoformat()
        case int() | float() | Decimal() as found:
            return str(found)
        case _:
            return None


def timestamp_as_text(value: bytes) -> str:
    """The property `timestamp` in ISO 8601."""
    return decode.timestamp(value)[1].isoformat()

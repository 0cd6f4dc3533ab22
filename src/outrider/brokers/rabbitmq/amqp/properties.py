"""A message's properties as they lie on the wire: any producer's can be read, and passed on."""

from __future__ import annotations

import struct
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pamqp import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE, HEADERS, DELIVERY_MODE, EXPIRATION = 1 << 15, 1 << 13, 1 << 12, 1 << 8
MESSAGE_ID, TIMESTAMP, USER_ID = 1 << 7, 1 << 6, 1 << 4

_ALL: Final = tuple(1 << bit for bit in range(15, 1, -1))
_FIXED: Final = {DELIVERY_MODE: 1, 1 << 11: 1, TIMESTAMP: 8}

_CONTENT: Final = struct.Struct(">HHQH")
_LENGTH: Final = struct.Struct(">I")

_LONG: Final = frozenset(b"SxAF")
# How long a value is, by the letter of its type; long ones begin with their length.
_SIZES: Final = {
    ord(letter): size
    for letters, size in (("V\0", 0), ("tbB", 1), ("su", 2), ("Iif", 4), ("D", 5), ("lLdT", 8))
    for letter in letters
} | dict.fromkeys(_LONG)


def read_properties(header: bytes) -> dict[int, bytes]:
    """The bytes of each property, by its flag."""
    flags = _CONTENT.unpack_from(header)[3]
    found, at = {}, _CONTENT.size
    for flag in _ALL:
        if flags & flag:
            if flag == HEADERS:
                size = _LENGTH.size + _LENGTH.unpack_from(header, at)[0]
            else:
                size = _FIXED.get(flag) or 1 + header[at]
            found[flag] = header[at : at + size]
            at += size
    if at != len(header):
        raise ValueError("no list of properties")
    return found


def write_header(properties: Mapping[int, bytes], body_size: int) -> bytes:
    flags = sum(properties)
    values = (properties[flag] for flag in sorted(properties, reverse=True))
    return _CONTENT.pack(60, 0, body_size, flags) + b"".join(values)


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


def text(value: str) -> bytes:
    """A value for a table; what Unicode cannot express becomes a question mark."""
    raw = value.encode(errors="replace")
    return b"S" + _LENGTH.pack(len(raw)) + raw


def text_of(value: bytes) -> str | None:
    """What a value of a table says, if it is a single thing."""
    if value[0] == ord("S"):
        return value[1 + _LENGTH.size :].decode()
    if value[0] in _LONG:
        return None  # without a look inside: tables nest deeper than Python recurses
    match decode.embedded_value(value)[1]:
        case bool() as found:
            return str(found).lower()
        case datetime() as found:
            return found.isoformat()
        case int() | float() | Decimal() as found:
            return str(found)
        case _:
            return None

"""A message that arrives in frames: a method first, then a header, then its body in pieces."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_SIZE: Final = struct.Struct(">HHQ")
_TAG: Final = struct.Struct(">Q?")


class Content:
    """Complete when nothing is missing."""

    def __init__(self, method: int, arguments: bytes) -> None:
        self.method, self.arguments = method, arguments
        self.header = b""
        self.missing = -1
        """Bytes of the body; negative until the header has said how long the body is."""
        self._pieces: list[bytes] = []

    def add_header(self, header: bytes) -> None:
        self.header, self.missing = header, _SIZE.unpack_from(header)[2]

    def add_piece(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.missing -= len(piece)
        if self.missing < 0:
            raise ValueError("more body than announced")

    @property
    def body(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


class Message(NamedTuple):
    """A delivered message with its frames joined; header and body are as they came."""

    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes

    def __repr__(self) -> str:
        return f"<message {self.tag}, {len(self.body)} bytes>"


def delivered_message(arguments: bytes, header: bytes, body: bytes) -> Message:
    """From the arguments of Basic.Deliver: consumer tag, delivery tag, flag, exchange, key."""
    at = 1 + arguments[0]
    tag, redelivered = _TAG.unpack_from(arguments, at)
    exchange = at + _TAG.size
    key = exchange + 1 + arguments[exchange]
    return Message(
        tag, redelivered, arguments[exchange + 1 : key], arguments[key + 1 :], header, body
    )

"""A message that comes in frames: a method first, then a header, then its body in pieces."""

from __future__ import annotations

import struct
from typing import Final

_SIZE: Final = struct.Struct(">HHQ")


class Content:
    """Complete when nothing is missing."""

    def __init__(self, method: int, arguments: bytes) -> None:
        self.method, self.arguments = method, arguments
        self.header = b""
        self.missing = -1
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

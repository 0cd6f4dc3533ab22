"""Frames and strings as AMQP 0-9-1 has them, marshalled by hand because it is the hot path."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pamqp import commands, frame

from outrider.brokers.rabbitmq.amqp.errors import Unsendable

if TYPE_CHECKING:
    from pamqp.base import Frame

CHANNEL: Final = 1
"""The one channel of every connection."""
FRAME_OVERHEAD: Final = 8
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
FRAME: Final = struct.Struct(">BHI")

_END: Final = bytes((FRAME_END,))
_MANDATORY: Final = b"\x01"
_NO_FLAGS: Final = b"\x00"
_MAX_SHORT_STRING_BYTES: Final = 255

_PUBLISH: Final = struct.Struct(">HHH")
_ACK: Final = struct.Struct(">BHIIQ?B")
_LENGTH: Final = struct.Struct(">I")


def short_string(text: str, what: str) -> bytes:
    """Raises Unsendable if it is too long; `what` is its name in the error."""
    raw = text.encode()
    if len(raw) > _MAX_SHORT_STRING_BYTES:
        raise Unsendable(f"its {what} needs {len(raw)} bytes, AMQP has {_MAX_SHORT_STRING_BYTES}")
    return short_bytes(raw)


def short_bytes(raw: bytes) -> bytes:
    """A short string of bytes that came over AMQP, so they are few enough."""
    return bytes((len(raw),)) + raw


def long_string(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def publish_frame(exchange: bytes, routing_key: bytes, *, mandatory: bool = True) -> bytes:
    """The method that comes before a message; both names are short strings already.

    The broker returns a mandatory message that no queue takes; any other it drops silently.
    """
    flags = _MANDATORY if mandatory else _NO_FLAGS
    payload = _PUBLISH.pack(60, 40, 0) + exchange + routing_key + flags
    return FRAME.pack(METHOD, CHANNEL, len(payload)) + payload + _END


def fits_in_frame(header: bytes, frame_max: int) -> bool:
    return len(header) + FRAME_OVERHEAD <= frame_max


def message_frames(publish: bytes, header: bytes, body: bytes, frame_max: int) -> bytes:
    """The method, header and body frames; raises Unsendable if the header is too large."""
    if not fits_in_frame(header, frame_max):
        raise Unsendable(f"its headers need {len(header)} bytes, a frame has {frame_max}")
    room = frame_max - FRAME_OVERHEAD
    parts = [publish, FRAME.pack(HEADER, CHANNEL, len(header)), header, _END]
    for at in range(0, len(body), room):
        piece = body[at : at + room]
        parts += (FRAME.pack(BODY, CHANNEL, len(piece)), piece, _END)
    return b"".join(parts)


def ack_frame(tag: int, *, multiple: bool) -> bytes:
    """`multiple` acknowledges all deliveries up to the tag."""
    return _ACK.pack(METHOD, CHANNEL, 13, commands.Basic.Ack.index, tag, multiple, FRAME_END)


def marshal_method(method: Frame) -> bytes:
    return frame.marshal(method, CHANNEL)

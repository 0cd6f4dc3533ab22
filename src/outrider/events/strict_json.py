"""Strict JSON: refuses values that would not be decoded unchanged, and names their field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from outrider.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]

_JSON_SCALARS: Final = (str, int, float, bool, type(None))
_TEXT_SCALARS: Final = (UUID, datetime, date, time, timedelta, Decimal, Enum, bytes)
_ENCODED_NUL: Final = b"\\u0000"
_encode: Final = msgspec.json.Encoder().encode
_MAX_INT_BITS: Final = 14_000  # Python parses integers of at most 4,300 digits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large and how deep one payload may be."""

    max_bytes: int = 256 * 1024
    """Large events slow down every batch; most brokers refuse messages above 1 MiB."""
    max_depth: int = 100
    """Deep nesting costs stack memory in every reader; PostgreSQL and Python limit it too."""

    def check_size(self, data: bytes, owner: str) -> None:
        if len(data) > self.max_bytes:
            raise InvalidEvent(
                f"{owner}: payload of {len(data):,} bytes, over the limit of {self.max_bytes:,}; "
                "store the bulk elsewhere and send its address, or raise Limits.max_bytes"
            )


DEFAULT_LIMITS: Final = Limits()


class Fault(Exception):
    """What is wrong with a value, and its path; each caller adds its own step to the path."""

    def __init__(self, reason: str, *path: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = list(path)

    def within(self, step: str | int) -> Fault:
        self.path.insert(0, step)
        return self

    def as_error(self, owner: str) -> InvalidEvent:
        place = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in self.path).lstrip(".")
        return InvalidEvent(
            f"{owner}: {place}: {self.reason}" if place else f"{owner}: {self.reason}"
        )


def check_float(value: float) -> None:
    try:
        exact = math.isfinite(value) and float(value) == value
    except OverflowError:
        exact = False
    if not exact:
        raise Fault("NaN, infinities and integers that no float can hold are not allowed here")


def check_decimal(value: Decimal) -> None:
    if not value.is_finite():
        raise Fault("NaN and infinities are not allowed; use None or leave the field out")


def check_time(value: datetime) -> None:
    if value.tzinfo is UTC:
        return
    offset = value.utcoffset()
    if offset is None:
        raise Fault("naive datetime; give it a time zone, e.g. datetime.now(UTC)")
    if offset % timedelta(minutes=1):
        raise Fault("time zone offset with seconds; convert it with .astimezone(UTC)")


def check_untyped(value: object, limits: Limits, *, lossless: bool, depth: int = 1) -> None:
    """Refuse values that JSON cannot hold; with `lossless`, also values that change their type."""
    if isinstance(value, dict):
        _check_depth(depth, limits)
        for key, item in value.items():
            if not isinstance(key, str):
                raise Fault(f"key of type {type(key).__name__}; JSON keys are strings")
            _step_into(key, item, limits, lossless=lossless, depth=depth)
    elif isinstance(value, list) or (not lossless and isinstance(value, tuple | set | frozenset)):
        _check_depth(depth, limits)
        for index, item in enumerate(value):
            _step_into(index, item, limits, lossless=lossless, depth=depth)
    elif isinstance(value, float):
        check_float(value)
    elif not isinstance(value, _JSON_SCALARS):
        _check_scalar(value, lossless=lossless)


def _step_into(
    step: str | int, item: object, limits: Limits, *, lossless: bool, depth: int
) -> None:
    try:
        check_untyped(item, limits, lossless=lossless, depth=depth + 1)
    except Fault as fault:
        raise fault.within(step) from None


def _check_depth(depth: int, limits: Limits) -> None:
    if depth > limits.max_depth:
        raise too_deep(limits)


def too_deep(limits: Limits) -> Fault:
    return Fault(f"nested deeper than {limits.max_depth} levels, or contains itself")


def check_payload(payload: object, owner: str) -> None:
    if not isinstance(payload, Mapping):
        cure = "; give its model_dump()" if hasattr(payload, "model_dump") else ""
        kind = type(payload).__name__
        raise InvalidEvent(f"{owner}: payload: expected a dict, got {kind}{cure}")


def no_json_form(kind: type) -> Fault:
    """The cure depends on where objects of this class come from."""
    cure = "convert it first"
    if hasattr(kind, "__mapper__"):
        cure = "an event holds values: copy those it needs from the ORM object, such as its id"
    elif hasattr(kind, "model_dump"):
        cure = "give its model_dump(), or derive the event from PydanticEvent"
    return Fault(f"{kind.__name__} has no JSON form; {cure}")


def _check_scalar(value: object, *, lossless: bool) -> None:
    name = type(value).__name__
    if not isinstance(value, _TEXT_SCALARS):
        raise no_json_form(type(value))
    if lossless:
        raise Fault(f"{name} in an untyped place would come back as text; annotate the field")
    if isinstance(value, datetime):
        check_time(value)
    elif isinstance(value, Decimal):
        check_decimal(value)


def encode(value: object, limits: Limits = DEFAULT_LIMITS, owner: str | None = None) -> bytes:
    """Encode a checked value. Raises InvalidEvent, whose text starts with the event type."""
    try:
        data = _encode(value)
        if b"\\" in data and _ENCODED_NUL in data and (fault := _find_fault(value)):
            raise fault
    except Fault as fault:
        raise fault.as_error(owner or _event_type(value)) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _explain(error, value, limits).as_error(owner or _event_type(value)) from None
    if len(data) > limits.max_bytes:
        limits.check_size(data, owner or _event_type(value))
    return data


def _event_type(event: object) -> str:
    return str(getattr(event, "event_type", type(event).__name__))


def encode_untyped(value: object, owner: str, limits: Limits = DEFAULT_LIMITS) -> bytes:
    try:
        check_untyped(value, limits, lossless=False)
    except Fault as fault:
        raise fault.as_error(owner) from None
    return encode(value, limits, owner)


def _explain(error: Exception, value: object, limits: Limits) -> Fault:
    if isinstance(error, RecursionError):
        return too_deep(limits)
    # The encoder's own text may quote a value, so only the class of its error is passed on.
    unknown = Fault(f"cannot be written as JSON ({type(error).__name__})")
    return _find_fault(value) or unknown


def _find_fault(value: object) -> Fault | None:
    """Find the value that the encoder or PostgreSQL refuses. Slow: called only after a failure."""
    for path, leaf in _leaves(msgspec.to_builtins(value)):
        if isinstance(leaf, int) and leaf.bit_length() > _MAX_INT_BITS:
            return Fault("integer too large for JSON readers", *path)
        if isinstance(leaf, str) and "\x00" in leaf:
            return Fault("contains the character U+0000, which PostgreSQL cannot store", *path)
        if isinstance(leaf, str) and any("\ud800" <= c <= "\udfff" for c in leaf):
            return Fault("contains half of a surrogate pair, which is not valid Unicode", *path)
    return None


def _leaves(
    value: object, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, "(a key)"), key
            yield from _leaves(item, (*path, key if str(key).isprintable() else "?"))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value

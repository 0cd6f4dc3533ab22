"""The codec: encodes events as JSON, decodes them by type name, and upcasts old versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from outrider.errors import ConfigurationError, DecodeError, InvalidEvent
from outrider.events.field_checks import compile_check, field_names_only
from outrider.events.strict_json import DEFAULT_LIMITS, JsonObject, Limits, encode, encode_untyped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outrider.events.field_checks import Check

    Upcaster = Callable[[JsonObject], JsonObject]

# Only characters that need no escaping in routing keys, subjects, headers and URLs.
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,254}")

_MAX_QUOTED_CHARS: Final = 255  # of untrusted text in an error, which may end up in a log

UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Raised by decoding untrusted JSON: for bad JSON, bytes that are not UTF-8 and deep nesting."""
_QUOTED_VALUE: Final = re.compile(r"Invalid (enum )?value .*?(?= - at |$)", re.DOTALL)


def check_type_name(name: object) -> str:
    if not isinstance(name, str) or not _TYPE_NAME.fullmatch(name):
        raise InvalidEvent(
            f"event type {str(name)[:_MAX_QUOTED_CHARS]!r}: "
            "use 1 to 255 letters, digits and _ . : / -, e.g. 'order.placed'"
        )
    return name


class ClassCodec(Protocol):
    """Encodes the instances of one event class as JSON, and decodes them."""

    def encode(self, event: object, limits: Limits, /) -> bytes: ...
    def decode(self, data: bytes | str, /) -> object: ...


class _EventClass(Protocol):
    @property
    def event_type(self) -> str: ...


class _Encodable(Protocol):
    @property
    def codec(self) -> ClassCodec: ...


class _AdHocEvent(_EventClass, Protocol):
    data: bytes


class _Identity(msgspec.Struct, gc=False):
    """The fields that a stored event must have, though its class has defaults for them."""

    event_id: msgspec.Raw
    occurred_at: msgspec.Raw


class DataclassCodec:
    """The codec of dataclass events. Compiled at first use, since only then every class that an
    annotation names is defined."""

    def __init__(self, cls: type, *, strict: bool) -> None:
        self.cls, self._strict = cls, strict

    @cached_property
    def check(self) -> Check:
        try:
            return compile_check(self.cls)
        except (TypeError, NameError) as error:
            raise ConfigurationError(f"event class {self.cls.__qualname__}: {error}") from error

    @cached_property
    def _decode(self) -> Callable[[bytes | str], object]:
        self.check  # noqa: B018 - raises a clear error for annotations that cannot be decoded
        return msgspec.json.Decoder(self.cls).decode

    @cached_property
    def _check_names(self) -> Callable[[bytes | str], object]:
        """Refuses a payload without an id or a time; if strict, also one with unknown fields."""
        names = field_names_only(self.cls) if self._strict else _Identity
        return msgspec.json.Decoder(names).decode

    encode = staticmethod(encode)

    def decode(self, data: bytes | str, /) -> object:
        event = self._decode(data)
        self._check_names(data)
        return event


class AdHocCodec:
    """The codec of ad-hoc events: they already hold JSON, and have no class to decode into."""

    def encode(self, event: object, limits: Limits, /) -> bytes:
        ad_hoc = cast("_AdHocEvent", event)
        limits.check_size(ad_hoc.data, ad_hoc.event_type)
        return ad_hoc.data

    def decode(self, data: bytes | str, /) -> object:
        raise NotImplementedError("an ad-hoc event has no class; read the envelope's payload")


@dataclass(frozen=True, kw_only=True)
class EventType:
    """One registered event class."""

    name: str
    version: int
    aggregate: str
    id_field: str
    cls: type
    codec: ClassCodec
    strict: bool
    """Whether its reader refuses unknown fields."""


class EventTypes:
    """The registry of event classes. Decoding creates only these, and never imports a class."""

    def __init__(self) -> None:
        self._by_name: dict[str, EventType] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def __iter__(self) -> Iterator[EventType]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def register(self, added: EventType, *, copy: bool = False) -> None:
        other = self._by_name.get(added.name)
        if other and not copy and _full_name(other.cls) != _full_name(added.cls):
            raise ConfigurationError(
                f"event type {added.name!r} is claimed by two classes: "
                f"{_full_name(other.cls)} and {_full_name(added.cls)}; give one another type"
            )
        self._by_name[added.name] = added

    def named(self, name: str) -> EventType:
        kind = self._by_name.get(name)
        if kind is None:
            raise DecodeError(
                f"unknown event type {name[:_MAX_QUOTED_CHARS]!r}: "
                "no event class with this type has been imported"
            )
        return kind

    def add_upcaster(self, name: str, version: int, upcaster: Upcaster) -> None:
        if self._upcasters.setdefault((name, version), upcaster) is not upcaster:
            raise ConfigurationError(f"{name} version {version} already has an upcaster")

    def has_upcaster(self, name: str, version: int) -> bool:
        return (name, version) in self._upcasters

    def decode(self, event_type: str, payload: bytes | str, version: int | None = None) -> Any:
        """Decode an event. A payload of an older version passes through its upcasters first."""
        kind = self._by_name.get(event_type) or self.named(event_type)
        if version is not None and version != kind.version:
            payload = self._upcast(kind, payload, version)
        try:
            return kind.codec.decode(payload)
        except UNREADABLE as error:
            raise decode_error(f"{event_type} version {kind.version}", error) from None

    def _upcast(self, kind: EventType, data: bytes | str, version: int) -> bytes:
        if not 1 <= version < kind.version:
            raise DecodeError(
                f"{kind.name} version {version}: this release knows versions up to {kind.version}"
            )
        payload = parse_payload(data, kind.name)
        for step in range(version, kind.version):
            upcaster = self._upcasters.get((kind.name, step))
            if upcaster is None:
                raise DecodeError(
                    f"{kind.name} version {step}: no upcaster leads to version {step + 1}; "
                    f"register one with @upcasts({kind.cls.__name__}, version={step})"
                )
            payload = _apply(upcaster, payload, f"{kind.name} version {step}")
        return encode_untyped(payload, f"{kind.name} after upcasting")


EVENT_TYPES: Final = EventTypes()
deserialize_event: Final = EVENT_TYPES.decode


def upcasts(event_class: _EventClass, *, version: int) -> Callable[[Upcaster], Upcaster]:
    """Register a function that converts a payload of `version` to the next version."""

    def register(upcaster: Upcaster) -> Upcaster:
        EVENT_TYPES.add_upcaster(event_class.event_type, version, upcaster)
        return upcaster

    return register


def serialize_event(event: _Encodable, limits: Limits = DEFAULT_LIMITS) -> str:
    """The event as JSON text: all fields of a typed event, or the payload of an ad-hoc event."""
    return event.codec.encode(event, limits).decode()


def parse_payload(data: bytes | str, owner: str) -> JsonObject:
    try:
        return msgspec.json.decode(data, type=JsonObject)
    except UNREADABLE as error:
        raise decode_error(owner, error) from None


def decode_error(owner: str, error: Exception) -> DecodeError:
    match error:
        case UnicodeError():
            why = "it is no valid Unicode text"
        case RecursionError():
            why = "it is nested too deeply"
        case _:
            # msgspec names the path and the expected type. Only for enums and literals it quotes
            # the value, which must not reach a log.
            why = _QUOTED_VALUE.sub("invalid value", str(error))
    return DecodeError(f"{owner}: {why}")


def _apply(upcaster: Upcaster, payload: JsonObject, owner: str) -> JsonObject:
    try:
        return upcaster(payload)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        # The text of the error may quote the payload, so it is neither repeated nor chained.
        raise DecodeError(f"{owner}: its upcaster raised {type(error).__name__}") from None


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"

"""Events to JSON and back: which class stands for which type name, and how old rows become new."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from outrider.errors import ConfigurationError, DecodeError, InvalidEvent
from outrider.events.field_checks import compile_check, field_names_only
from outrider.events.strict_json import DEFAULT_LIMITS, Limits, encode, encode_untyped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Payload = dict[str, Any]
    Upcaster = Callable[[Payload], Payload]

# One alphabet that routing keys, subjects, headers and URLs all take as it is.
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,254}")

_SHOWN: Final = 255  # of a stranger's text, in an error that may end up in a log

UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What reading JSON of strangers raises: also for bytes that are no text, and for deep nesting."""
_QUOTED_VALUE: Final = re.compile(r"Invalid (enum )?value .*?(?= - at |$)", re.DOTALL)


def check_type_name(name: object) -> str:
    if not isinstance(name, str) or not _TYPE_NAME.fullmatch(name):
        raise InvalidEvent(
            f"event type {str(name)[:_SHOWN]!r}: "
            "use 1 to 255 letters, digits and _ . : / -, e.g. 'order.placed'"
        )
    return name


class ClassCodec(Protocol):
    """Turns the instances of one event class into JSON and back."""

    def encode(self, event: Any, limits: Limits, /) -> bytes: ...
    def decode(self, data: bytes | str, /) -> Any: ...


class DataclassCodec:
    """The codec of dataclass events; compiled at first use, when every annotation has its class."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls

    @cached_property
    def check(self) -> Callable[[Any], None]:
        try:
            return compile_check(self.cls)
        except (TypeError, NameError) as error:
            raise ConfigurationError(f"event class {self.cls.__qualname__}: {error}") from error

    @cached_property
    def _decode(self) -> Callable[[bytes | str], Any]:
        self.check  # noqa: B018 - explains annotations that no codec knows
        return msgspec.json.Decoder(self.cls).decode

    @cached_property
    def _decode_names(self) -> Callable[[bytes | str], Any]:
        return msgspec.json.Decoder(field_names_only(self.cls)).decode

    encode = staticmethod(encode)

    def decode(self, data: bytes | str, /) -> Any:
        event = self._decode(data)
        self._decode_names(data)  # a dataclass is read without a look at unknown fields
        return event


class AdHocCodec:
    """Ad-hoc events carry their JSON with them, and come back as payloads only."""

    def encode(self, event: Any, limits: Limits, /) -> bytes:
        data: bytes = event.data
        limits.check_size(data, event.event_type)
        return data

    def decode(self, data: bytes | str, /) -> Any:
        raise NotImplementedError("an ad-hoc event has no class; read the envelope's payload")


@dataclass(frozen=True, kw_only=True)
class EventType:
    """What is known about one event class."""

    name: str
    version: int
    aggregate: str
    id_field: str
    cls: type
    codec: ClassCodec


class EventTypes:
    """The explicit list of classes that decoding may create; nothing else is ever imported."""

    def __init__(self) -> None:
        self._by_name: dict[str, EventType] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def __iter__(self) -> Iterator[EventType]:
        return iter(self._by_name.values())

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
                f"unknown event type {name[:_SHOWN]!r}: "
                "no event class with this type has been imported"
            )
        return kind

    def add_upcaster(self, name: str, version: int, upcaster: Upcaster) -> None:
        if self._upcasters.setdefault((name, version), upcaster) is not upcaster:
            raise ConfigurationError(f"{name} version {version} already has an upcaster")

    def has_upcaster(self, name: str, version: int) -> bool:
        return (name, version) in self._upcasters

    def decode(self, event_type: str, payload: bytes | str, version: int | None = None) -> Any:
        """The event again; rows of an older version go through their upcasters first."""
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


def upcasts(event_class: Any, *, version: int) -> Callable[[Upcaster], Upcaster]:
    """Register how a payload of `version` becomes one of the next version."""

    def register(upcaster: Upcaster) -> Upcaster:
        EVENT_TYPES.add_upcaster(event_class.event_type, version, upcaster)
        return upcaster

    return register


def serialize_event(event: Any, limits: Limits = DEFAULT_LIMITS) -> str:
    """The event as JSON text: all fields of a typed event, or the payload of an ad-hoc one."""
    data: bytes = event.codec.encode(event, limits)
    return data.decode()


def parse_payload(data: bytes | str, owner: str) -> Payload:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE as error:
        raise decode_error(owner, error) from None


def decode_error(owner: str, error: Exception) -> DecodeError:
    match error:
        case UnicodeError():
            why = "it is no valid Unicode text"
        case RecursionError():
            why = "it is nested too deeply"
        case _:
            # msgspec names path and expected type; only for enums and literals it quotes the value.
            why = _QUOTED_VALUE.sub("invalid value", str(error))
    return DecodeError(f"{owner}: {why}")


def _apply(upcaster: Upcaster, payload: Payload, owner: str) -> Payload:
    try:
        return upcaster(payload)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        # Its text may quote the payload, so it is neither repeated nor chained.
        raise DecodeError(f"{owner}: its upcaster raised {type(error).__name__}") from None


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"

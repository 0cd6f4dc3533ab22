"""Declaring events: typed event classes and ad-hoc events."""

from __future__ import annotations

import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable  # noqa: TC003 - msgspec resolves the annotations below
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID  # noqa: TC003

from outrider.errors import ConfigurationError
from outrider.events.codec import (
    EVENT_TYPES,
    AdHocCodec,
    ClassCodec,
    DataclassCodec,
    EventType,
    check_type_name,
    parse_payload,
)
from outrider.events.envelope import NO_METADATA, EventEnvelope, EventMetadata
from outrider.events.ids import EventId
from outrider.events.strict_json import (
    DEFAULT_LIMITS,
    Fault,
    JsonObject,
    Limits,
    check_payload,
    encode_untyped,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_RESERVED_NAMES: Final = {"event_type", "event_version", "aggregate_type", "aggregate_id"}


class Event:
    """The base class of dataclass events and pydantic events.

    Class keywords: `type` (default: the name of the class), `aggregate` (default: the part of
    the type before the first dot, else the `<name>` of the first field `<name>_id`),
    `aggregate_id` (the field that holds the aggregate's id; default `<aggregate>_id` or `id`),
    `version`, `strict` to refuse unknown fields when reading (default: they are ignored), and
    `abstract` for a base class that is not an event itself.
    """

    event_type: ClassVar[str]
    event_version: ClassVar[int]
    aggregate_type: ClassVar[str]
    codec: ClassVar[ClassCodec]
    _id_field: ClassVar[str]
    _strict: ClassVar[bool] = False
    _make_codec: ClassVar[Callable[..., ClassCodec]] = DataclassCodec

    event_id: UUID
    occurred_at: datetime

    def __init_subclass__(
        cls,
        *,
        type: str | None = None,
        aggregate: str | None = None,
        aggregate_id: str | None = None,
        version: int = 1,
        strict: bool | None = None,
        abstract: bool = False,
        **other: object,
    ) -> None:
        super().__init_subclass__(**other)
        if "__repr__" not in cls.__dict__:
            # The repr of a dataclass prints every field, and would bring payloads into logs.
            cls.__repr__ = Event.__repr__  # type: ignore[method-assign]
        if strict is not None:
            cls._strict = strict
        if abstract:
            return
        copy = "event_type" in cls.__dict__  # dataclass(slots=True) creates the class twice
        if not copy:
            cls.event_type = check_type_name(type or cls.__name__)
            cls.event_version = version
            cls.aggregate_type, cls._id_field = _find_aggregate(cls, aggregate, aggregate_id)
        cls.codec = cls._make_codec(cls, strict=cls._strict)
        EVENT_TYPES.register(
            EventType(
                name=cls.event_type,
                version=cls.event_version,
                aggregate=cls.aggregate_type,
                id_field=cls._id_field,
                cls=cls,
                codec=cls.codec,
                strict=cls._strict,
            ),
            copy=copy,
        )

    @property
    def aggregate_id(self) -> str:
        return str(getattr(self, self._id_field))

    def to_envelope(
        self, metadata: EventMetadata = NO_METADATA, *, limits: Limits = DEFAULT_LIMITS
    ) -> EventEnvelope:
        # Encoding comes first: its error names the bad field, also if that is the aggregate's id.
        data = self.codec.encode(self, limits)
        return EventEnvelope(
            event_id=self.event_id,
            event_type=self.event_type,
            event_version=self.event_version,
            aggregate_type=self.aggregate_type,
            aggregate_id=self.aggregate_id,
            occurred_at=self.occurred_at,
            data=data,
            metadata=metadata,
        )

    def __repr__(self) -> str:
        return f"<{self.event_type} {self.event_id} of {self.aggregate_type} {self.aggregate_id}>"


def utc_now() -> datetime:
    return datetime.now(UTC)


class _ChecksFields(ABCMeta):
    """Checks the fields of every new event, so that the error is raised where it was created.

    Not in `__post_init__`: event classes may define that method, and decoding calls it too.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        if cls is not DomainEvent and vars(cls).get("__dataclass_fields__") is None:
            raise TypeError(f"put @dataclass(frozen=True, kw_only=True) above class {cls.__name__}")
        event = super().__call__(*args, **fields)
        if isinstance(event.codec, DataclassCodec):
            try:
                event.codec.check(event)
            except Fault as fault:
                raise fault.as_error(event.event_type) from None
        return event


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DomainEvent(Event, abstract=True, metaclass=_ChecksFields):
    """An event: derive a frozen, keyword-only dataclass from it, or create an ad-hoc event."""

    event_id: UUID = field(default_factory=EventId.new)
    occurred_at: datetime = field(default_factory=utc_now)

    codec: ClassVar[ClassCodec] = AdHocCodec()
    _id_field: ClassVar[str] = "_ad_hoc_id"

    def __init__(
        self,
        event_type: str,
        aggregate_type: str,
        aggregate_id: UUID | str | int,
        payload: Mapping[str, object],
        *,
        event_id: UUID | None = None,
        occurred_at: datetime | None = None,
        event_version: int = 1,
    ) -> None:
        check_type_name(event_type)
        check_payload(payload, event_type)
        self.__dict__.update(
            event_type=event_type,
            event_version=event_version,
            aggregate_type=aggregate_type,
            _ad_hoc_id=str(aggregate_id),
            # Encoded now, so that later changes of the caller's dict do not change the event.
            data=encode_untyped(dict(payload), event_type, Limits(max_bytes=sys.maxsize)),
            event_id=event_id or EventId.new(),
            occurred_at=occurred_at or utc_now(),
        )

    @property
    def payload(self) -> JsonObject:
        """The payload of the envelope."""
        return parse_payload(self.codec.encode(self, DEFAULT_LIMITS), self.event_type)

    def __eq__(self, other: object) -> bool:
        # For ad-hoc events; typed events use the comparison of their dataclass.
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(self.event_id)


def _find_aggregate(
    cls: type[Event], aggregate: str | None, id_field: str | None
) -> tuple[str, str]:
    fields = [name for base in reversed(cls.__mro__) for name in inspect.get_annotations(base)]
    fields = [name for name in fields if name not in inspect.get_annotations(Event)]
    if taken := _RESERVED_NAMES.intersection(fields):
        raise ConfigurationError(f"event class {cls.__qualname__}: {min(taken)} cannot be a field")
    if aggregate is None and "." in cls.event_type:
        aggregate = cls.event_type.partition(".")[0]
    if id_field is None:
        wanted = (
            [f"{aggregate}_id", "id"] if aggregate else [f for f in fields if f.endswith("_id")]
        )
        id_field = next((name for name in wanted if name in fields), None)
    if id_field not in fields:
        raise ConfigurationError(
            f"event class {cls.__qualname__}: which field is the aggregate's id? Name it "
            f'{aggregate or "<aggregate>"}_id, or say aggregate_id="<field>" after the base class; '
            "a class that is no event itself says abstract=True"
        )
    return aggregate or id_field.removesuffix("_id"), id_field

"""Pydantic models as events, with the class keywords of every event."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - pydantic resolves the annotations below
from typing import TYPE_CHECKING, ClassVar, cast
from uuid import UUID  # noqa: TC003

from outrider.errors import ConfigurationError, DecodeError
from outrider.events.codec import ClassCodec  # noqa: TC001
from outrider.events.event import Event, utc_now
from outrider.events.ids import EventId
from outrider.events.strict_json import Fault, Limits, check_untyped, encode

try:
    from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
except ImportError as missing:
    raise ConfigurationError("pydantic is missing: pip install 'outrider[pydantic]'") from missing

if TYPE_CHECKING:
    from collections.abc import Iterable


class PydanticCodec:
    """Encodes and decodes with pydantic, under the same rules as for every event."""

    def __init__(self, cls: type) -> None:
        self._cls = cast("type[PydanticEvent]", cls)

    def encode(self, event: object, limits: Limits, /) -> bytes:
        event = cast("PydanticEvent", event)
        try:
            check_untyped(event.model_dump(), limits, lossless=False)
        except Fault as fault:
            raise fault.as_error(event.event_type) from None
        return encode(event.model_dump(mode="json"), limits, event.event_type)

    def decode(self, data: bytes | str, /) -> object:
        owner = f"{self._cls.event_type} version {self._cls.event_version}"
        try:
            event = self._cls.model_validate_json(data)
        except ValidationError as error:
            # The messages of pydantic may quote the value; its error types do not.
            kinds = [f"{'.'.join(map(str, e['loc']))}: {e['type']}" for e in error.errors()]
            raise DecodeError(f"{owner}: {'; '.join(kinds)}") from None
        for name in ("event_id", "occurred_at"):
            if name not in event.model_fields_set:
                raise DecodeError(f"{owner}: {name}: missing")
        return event


class PydanticEvent(Event, BaseModel, abstract=True):
    """The base class of pydantic events; use it like DomainEvent, but without a decorator."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    _make_codec: ClassVar[Callable[[type], ClassCodec]] = PydanticCodec

    event_id: UUID = Field(default_factory=EventId.new)
    occurred_at: AwareDatetime = Field(default_factory=utc_now)

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        return [(None, self.event_type), (None, self.event_id)]

    def __str__(self) -> str:
        return repr(self)

"""Pydantic models as events, with the class keywords of every event."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - pydantic resolves the annotations below
from typing import TYPE_CHECKING, Any, ClassVar, cast
from uuid import UUID  # noqa: TC003

import msgspec

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

    def __init__(self, cls: type, *, strict: bool) -> None:
        self._cls, self._strict = cast("type[PydanticEvent]", cls), strict

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
            event = self._read(data)
        except ValidationError as error:
            # The messages of pydantic may quote the value; its error types do not.
            kinds = [f"{'.'.join(map(str, e['loc']))}: {e['type']}" for e in error.errors()]
            raise DecodeError(f"{owner}: {'; '.join(kinds)}") from None
        for name in ("event_id", "occurred_at"):
            if name not in event.model_fields_set:
                raise DecodeError(f"{owner}: {name}: missing")
        return event

    def _read(self, data: bytes | str) -> PydanticEvent:
        """A class refuses unknown fields when an event is created, but ignores them here."""
        try:
            return self._cls.model_validate_json(data)
        except ValidationError as error:
            unknown = {e["loc"] for e in error.errors() if e["type"] == "extra_forbidden"}
            if self._strict or not unknown:
                raise
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        known = {name: value for name, value in fields.items() if (name,) not in unknown}
        return self._cls.model_validate_json(msgspec.json.encode(known))


class PydanticEvent(Event, BaseModel, abstract=True):
    """The base class of pydantic events; use it like DomainEvent, but without a decorator.

    The class keyword `strict` also is pydantic's own: no value is converted to a field's type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    _make_codec: ClassVar[Callable[..., ClassCodec]] = PydanticCodec

    event_id: UUID = Field(default_factory=EventId.new)
    occurred_at: AwareDatetime = Field(default_factory=utc_now)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(strict=cls.model_config.get("strict"), **keywords)

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        return [(None, self.event_type), (None, self.event_id)]

    def __str__(self) -> str:
        return repr(self)

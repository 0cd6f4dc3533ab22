"""`@handles`: functions and classes that react to events, found by event type."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outrider.context import handling
from outrider.errors import ConfigurationError
from outrider.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outrider.envelope import EventEnvelope
    from outrider.ports import EventHandler

Target = TypeVar("Target", bound="Callable[..., Any]")


class TypedHandler:
    """A handler that decodes the event first, and hands over what the parameters ask for.

    The target is a function, or a class whose `handle` is called on a new instance each time.
    A parameter annotated EventEnvelope or EventMetadata gets that, any other the event.
    """

    def __init__(self, target: Callable[..., Any], event_class: type[Event]) -> None:
        self.name = f"{target.__module__}.{target.__qualname__}"
        self._target = target
        self._event_class = event_class
        method = getattr(target, "handle", None) if inspect.isclass(target) else target
        if method is None:
            raise ConfigurationError(f"{self.name}: a handler class needs a method named handle")
        parameters = list(inspect.signature(method).parameters.values())
        self._asks_for = [_type_name(p) for p in parameters[1 if inspect.isclass(target) else 0 :]]

    async def handle(self, envelope: EventEnvelope, /) -> None:
        given = {"EventEnvelope": envelope, "EventMetadata": envelope.metadata}
        event = envelope.payload_as(self._event_class)
        target: Any = self._target
        call = target().handle if inspect.isclass(self._target) else target
        with handling(envelope):
            result = call(*(given.get(kind, event) for kind in self._asks_for))
            if inspect.isawaitable(result):
                await result

    def __repr__(self) -> str:
        return f"<handler {self.name} of {self._event_class.event_type}>"


class Handlers:
    """Handlers by event type, in the order of their registration."""

    def __init__(self) -> None:
        self._by_type: dict[str, list[EventHandler]] = {}

    def handles(self, *event_classes: type[Event]) -> Callable[[Target], Target]:
        """Register the function or class below for these events."""
        for event_class in event_classes:
            if not issubclass(event_class, Event):
                raise ConfigurationError(f"@handles takes event classes, not {event_class!r}")

        def register(target: Target) -> Target:
            for event_class in event_classes:
                handler = TypedHandler(target, event_class)
                self._by_type.setdefault(event_class.event_type, []).append(handler)
            return target

        return register

    def of(self, event_type: str) -> list[EventHandler]:
        return list(self._by_type.get(event_type, ()))

    def __iter__(self) -> Iterator[tuple[str, EventHandler]]:
        for event_type, handlers in self._by_type.items():
            for handler in handlers:
                yield event_type, handler


HANDLERS: Final = Handlers()
handles = HANDLERS.handles


def _type_name(parameter: inspect.Parameter) -> str:
    # By name, since an annotation may be a string whose import exists only for type checkers.
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2]

"""`@handles`: registers functions and classes as handlers of event types."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_type_hints

from outrider.consumer.handler_runner import finish
from outrider.consumer.scopes import current_scope
from outrider.errors import ConfigurationError
from outrider.events.context import handling
from outrider.events.event import Event
from outrider.events.patterns import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outrider.consumer.scopes import Scope
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventHandler

_FROM_ENVELOPE: Final = {"EventEnvelope": "envelope", "EventMetadata": "metadata"}
Function = Callable[..., Any]
Subscription = tuple[str, "EventHandler"]
"""An event type, or a pattern of event types, with one handler."""
Target = TypeVar("Target", bound=Function)


class TypedHandler:
    """A handler that decodes the event, and injects its parameters by their annotations.

    The target is a function, or a class whose `handle` is called on a new instance each time.
    A parameter annotated EventEnvelope or EventMetadata gets that object. The parameter annotated
    with the event's class gets the event; if there is none, the first other parameter gets it.
    The scope supplies all other parameters by their type, and also creates the instance of a
    class whose constructor has parameters.
    """

    def __init__(
        self, target: Function, event_class: type[Event], name: str | None = None, place: str = ""
    ) -> None:
        self.name = name or _full_name(target)
        self.place = place
        """Where it was registered, as module:line."""
        self._target = target
        self._event_class = event_class
        self._is_class = inspect.isclass(target)
        method = getattr(target, "handle", None) if self._is_class else target
        if method is None:
            raise ConfigurationError(f"{self.name}: a handler class needs a method named handle")
        refuse_generator(self.name, method)
        self._method = method
        self._sources = self._read_signature(method)
        self._from_scope = self._is_class and bool(_required(target))

    def _read_signature(self, method: Function) -> dict[str, str]:
        """Where each parameter comes from: envelope, metadata, event or scope."""
        parameters = _required(method)[1 if self._is_class else 0 :]
        sources = {
            p.name: next(
                (_FROM_ENVELOPE[n] for n in _type_names(p) & _FROM_ENVELOPE.keys()), "scope"
            )
            for p in parameters
        }
        others = [p for p in parameters if sources[p.name] == "scope"]
        class_names = {kind.__name__ for kind in self._event_class.__mro__}
        annotated = [p for p in others if class_names & _type_names(p)]
        for parameter in (annotated or others)[:1]:
            sources[parameter.name] = "event"
        return sources

    @property
    def needs(self) -> list[str]:
        """The parameters that only a scope can supply."""
        own = [self.name] if self._from_scope else []
        return own + [name for name, source in self._sources.items() if source == "scope"]

    async def handle(self, envelope: EventEnvelope, /) -> None:
        from_envelope = {
            "envelope": envelope,
            "metadata": envelope.metadata,
            "event": envelope.payload_as(self._event_class),
        }
        call = (await self._instance()).handle if self._is_class else self._target
        values = [
            from_envelope[source] if source in from_envelope else await self._resolve(name)
            for name, source in self._sources.items()
        ]
        with handling(envelope):
            await finish(call(*values))

    async def _instance(self) -> Any:
        if not self._from_scope:
            return self._target()
        return await self._scope(self._target.__name__).get(cast("type[Any]", self._target))

    async def _resolve(self, name: str) -> object:
        scope = self._scope(name)
        try:
            kind = get_type_hints(self._method, include_extras=True)[name]
        except (NameError, KeyError):
            raise ConfigurationError(
                f"{self.name}: the type of {name} cannot be found; annotate it with a class that "
                "is imported at run time"
            ) from None
        return await scope.get(kind)

    def _scope(self, wanted: str) -> Scope:
        scope = current_scope()
        if scope is None:
            raise ConfigurationError(f"{self.name} asks for {wanted}, and it runs in no scope")
        return scope

    def __eq__(self, other: object) -> bool:
        """A function that is registered twice for one event is one handler."""
        return isinstance(other, TypedHandler) and (
            (other.name, other._target, other._event_class)
            == (self.name, self._target, self._event_class)
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<handler {self.name} of {self._event_class.event_type}>"


class Handlers:
    """Handlers by event type, in the order of their registration."""

    def __init__(self) -> None:
        self._all: list[Subscription] = []

    def handles(
        self, *event_classes: type[Event], name: str | None = None
    ) -> Callable[[Target], Target]:
        """Decorator that registers a function or class as a handler of these events.

        The inbox, logs and metrics know a handler by its name: that of the function, unless given.
        """
        _check_event_classes(event_classes)

        def register(target: Target) -> Target:
            place = _place_of_caller()
            for event_class in event_classes:
                handler = TypedHandler(target, event_class, name, place)
                add_handler(self._all, event_class.event_type, handler)
            return target

        return register

    def of(self, event_type: str) -> list[EventHandler]:
        return [handler for registered, handler in self._all if registered == event_type]

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._all)


HANDLERS: Final = Handlers()
"""Filled by `handles`; read by every publisher and consumer that is given no handlers."""
handles = HANDLERS.handles


def add_handler(handlers: list[Subscription], pattern: str, handler: EventHandler) -> None:
    """Append once. Refuse another handler of the same name: an event would meet only the first."""
    for other_pattern, other in handlers:
        if other.name == handler.name and other != handler and overlap(other_pattern, pattern):
            raise ConfigurationError(
                f"two handlers of {pattern} are named {handler.name!r}, and the second would never "
                f"be called: {_place_of(other)} and {_place_of(handler)}; rename one, put "
                'functools.wraps into its decorator, or write @handles(…, name="…")'
            )
    if (pattern, handler) not in handlers:
        handlers.append((pattern, handler))


def refuse_generator(name: str, method: Function) -> None:
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise ConfigurationError(
            f"{name} has a yield, so a call would make a generator and do nothing: remove the yield"
        )


def _place_of(handler: EventHandler) -> str:
    kind = type(handler)
    return getattr(handler, "place", "") or f"{kind.__module__}.{kind.__qualname__}"


def _place_of_caller() -> str:
    """Where the decorator stands that calls our caller, as module:line."""
    frame = sys._getframe(2)
    return f"{frame.f_globals.get('__name__')}:{frame.f_lineno}"


def _full_name(target: Function) -> str:
    qualified_name = getattr(target, "__qualname__", None)
    if qualified_name is None:
        raise ConfigurationError(
            f'handler: {type(target).__name__} has no name; write @handles(…, name="…")'
        )
    return f"{target.__module__}.{qualified_name}"


def _check_event_classes(given: tuple[object, ...]) -> None:
    if not given:
        raise ConfigurationError("@handles() names no event class: write @handles(OrderPlaced)")
    for one in given:
        if inspect.isclass(one) and issubclass(one, Event):
            if not hasattr(one, "event_type"):
                raise ConfigurationError(
                    f"@handles({one.__name__}): it is no event itself; name the classes derived "
                    'from it, or subscribe a handler object to "*"'
                )
        elif callable(one):
            name = getattr(one, "__name__", type(one).__name__)
            raise ConfigurationError(
                f"@handles takes event classes, not {name}: "
                f"write @handles(OrderPlaced) above {name}"
            )
        else:
            raise ConfigurationError(
                f"@handles takes event classes, not {one!r}: import the class of the event, "
                "and write @handles(OrderPlaced)"
            )


def _required(target: Function) -> list[inspect.Parameter]:
    """The parameters without a default value."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        p
        for p in inspect.signature(target).parameters.values()
        if p.default is p.empty and p.kind not in variable
    ]


def _type_names(parameter: inspect.Parameter) -> set[str]:
    """The class names of an annotation, one for each part of a union.

    Names, and not classes, since a class may be imported only for type checkers.
    """
    annotation = parameter.annotation
    text = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    return {part.strip().rpartition(".")[2] for part in text.split("|")}

"""What a handler works with, and for how long: each call has a scope of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from outrider.errors import ConfigurationError
from outrider.events.envelope import EventEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Scope(Protocol):
    """Gives objects by their type, as a container of Dishka does."""

    async def get(self, dependency_type: type[T], /) -> T: ...


ScopeFactory = Callable[[EventEnvelope], AbstractAsyncContextManager[Scope]]
"""Opens a scope for one handler and one event; what it gave ends with it."""

_current: Final[ContextVar[Scope | None]] = ContextVar("outrider_scope", default=None)
_skips: Final[ContextVar[list[str] | None]] = ContextVar("outrider_skips", default=None)


def current_scope() -> Scope | None:
    """The scope of the handler that runs now."""
    return _current.get()


@contextmanager
def within(scope: Scope) -> Iterator[Scope]:
    """Make it the scope of whatever runs inside."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def watch_for_skips() -> list[str]:
    """Gets the names of handlers that skip an event, from now on and in this task."""
    found: list[str] = []
    _skips.set(found)
    return found


def skip(handler: str) -> None:
    """Say that a handler has dealt with the event before; however deep it is wrapped, this is
    heard by whoever called it."""
    found = _skips.get()
    if found is not None:
        found.append(handler)


class GivenScope:
    """A scope over objects at hand; what it lacks, an outer one may have."""

    def __init__(self, objects: Mapping[type[Any], object], outer: Scope | None = None) -> None:
        self._objects, self._outer = objects, outer

    async def get(self, dependency_type: type[T], /) -> T:
        for kind in (dependency_type, *self._objects):
            found = self._objects.get(kind)
            if isinstance(found, dependency_type):
                return found
        if self._outer is None:
            raise ConfigurationError(f"this scope has no {dependency_type.__name__}")
        return await self._outer.get(dependency_type)

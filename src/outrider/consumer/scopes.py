"""Scopes: each call of a handler gets its dependencies from its own scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from outrider.errors import ConfigurationError
from outrider.events.envelope import EventEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Scope(Protocol):
    """Returns dependencies by their type, as a container of Dishka does."""

    async def get(self, dependency_type: type[T], /) -> T: ...


ScopeFactory = Callable[[EventEnvelope], AbstractAsyncContextManager[Scope]]
"""Opens a scope for one handler and one event; its objects are closed with the scope."""

_current: Final[ContextVar[Scope | None]] = ContextVar("outrider_scope", default=None)
_skips: Final[ContextVar[list[str] | None]] = ContextVar("outrider_skips", default=None)


def current_scope() -> Scope | None:
    """The scope of the running handler."""
    return _current.get()


@contextmanager
def use_scope(scope: Scope) -> Iterator[Scope]:
    """Make this the current scope inside the block."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def collect_skips() -> list[str]:
    """A list to which `skip` appends from now on, in this task."""
    skips: list[str] = []
    _skips.set(skips)
    return skips


def skip(handler: str) -> None:
    """Report that a handler skipped an event that it processed before.

    The caller learns this through all wrappers around the handler.
    """
    skips = _skips.get()
    if skips is not None:
        skips.append(handler)


class ObjectScope:
    """A scope of given objects; it asks the outer scope for everything else."""

    def __init__(self, objects: Mapping[type, object], outer: Scope | None = None) -> None:
        self._objects, self._outer = objects, outer

    async def get(self, dependency_type: type[T], /) -> T:
        for kind in (dependency_type, *self._objects):
            candidate = self._objects.get(kind)
            if isinstance(candidate, dependency_type):
                return candidate
        if self._outer is None:
            raise ConfigurationError(f"this scope has no {dependency_type.__name__}")
        return await self._outer.get(dependency_type)

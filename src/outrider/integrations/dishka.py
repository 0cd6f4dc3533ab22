"""Dishka: what use cases ask for, and one REQUEST scope for each handled event."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

try:
    from dishka import AsyncContainer, Provider, Scope, from_context
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing.name}: pip install 'outrider[dishka]'") from None
from sqlalchemy.ext.asyncio import AsyncSession  # noqa: TC002 - Dishka reads the annotations

from outrider.events.bus import EventBus
from outrider.events.envelope import EventEnvelope, EventMetadata
from outrider.recording.outbox import Outbox, OutboxEventDispatcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outrider.consumer.scopes import Scope as HandlerScope
    from outrider.consumer.scopes import ScopeFactory


class OutriderProvider(Provider):
    """Gives a dispatcher and an event bus to each request, over the session of that request.

    It asks for an AsyncSession in Scope.REQUEST and never makes one: the session is the
    application's. `dispatcher` is the protocol that use cases know the dispatcher by.
    """

    envelope = from_context(provides=EventEnvelope, scope=Scope.REQUEST)

    def __init__(
        self, outbox: Outbox | None = None, *, dispatcher: type[Any] | None = None
    ) -> None:
        super().__init__()
        made = outbox or Outbox()

        def dispatch_over(session: AsyncSession) -> OutboxEventDispatcher:
            return OutboxEventDispatcher(session, made)

        def metadata_of(envelope: EventEnvelope) -> EventMetadata:
            return envelope.metadata

        self.provide(lambda: made, provides=Outbox, scope=Scope.APP)
        self.provide(EventBus, scope=Scope.REQUEST)
        self.provide(dispatch_over, provides=OutboxEventDispatcher, scope=Scope.REQUEST)
        self.provide(metadata_of, provides=EventMetadata, scope=Scope.REQUEST)
        if dispatcher is not None:
            self.alias(source=OutboxEventDispatcher, provides=dispatcher)


def dishka_scope(container: AsyncContainer) -> ScopeFactory:
    """For InProcessPublisher and EventConsumer: each handler gets what it asks for from a
    REQUEST scope of its own, which also has the event's envelope and metadata."""

    @asynccontextmanager
    async def scope(envelope: EventEnvelope) -> AsyncIterator[HandlerScope]:
        async with container(context={EventEnvelope: envelope}) as request:
            yield cast("HandlerScope", request)

    return scope

"""Dishka: provides the outbox to use cases, and a REQUEST scope to each handler call."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

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
    """Provides a dispatcher and an event bus to each request, with the session of that request.

    The application must provide an AsyncSession in Scope.REQUEST. `dispatcher` is the protocol by
    which use cases ask for the dispatcher.
    """

    envelope = from_context(provides=EventEnvelope, scope=Scope.REQUEST)

    def __init__(self, outbox: Outbox | None = None, *, dispatcher: type | None = None) -> None:
        super().__init__()
        used_outbox = outbox or Outbox()

        def dispatcher_of(session: AsyncSession) -> OutboxEventDispatcher:
            return OutboxEventDispatcher(session, used_outbox)

        def metadata_of(envelope: EventEnvelope) -> EventMetadata:
            return envelope.metadata

        self.provide(lambda: used_outbox, provides=Outbox, scope=Scope.APP)
        self.provide(EventBus, scope=Scope.REQUEST)
        self.provide(dispatcher_of, provides=OutboxEventDispatcher, scope=Scope.REQUEST)
        self.provide(metadata_of, provides=EventMetadata, scope=Scope.REQUEST)
        if dispatcher is not None:
            self.alias(source=OutboxEventDispatcher, provides=dispatcher)


def dishka_scope(container: AsyncContainer) -> ScopeFactory:
    """The `scope` of InProcessPublisher and EventConsumer: a REQUEST scope per handler call.

    The scope also provides the envelope and the metadata of the event.
    """

    @asynccontextmanager
    async def scope(envelope: EventEnvelope) -> AsyncIterator[HandlerScope]:
        async with container(context={EventEnvelope: envelope}) as request:
            yield cast("HandlerScope", request)

    return scope

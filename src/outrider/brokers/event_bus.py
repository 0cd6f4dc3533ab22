"""An event bus over a broker: a publisher and a consumer in one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from outrider.consumer.consumer import EventConsumer
from outrider.consumer.subscriptions import check_pairs
from outrider.errors import ConfigurationError, name_of
from outrider.events.envelope import EventEnvelope
from outrider.events.event import Event
from outrider.lifecycle import Openable, close_publisher, open_publisher
from outrider.observability.logging import log_signals
from outrider.ports import EventPublisher, EventSubscriber

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outrider.consumer.consumer import ConsumerConfig
    from outrider.consumer.scopes import ScopeFactory
    from outrider.ports import EventHandler, EventSource, Inbox
    from outrider.signals import OnSignal


@runtime_checkable
class PublishSubscribeBus(EventPublisher, EventSubscriber, Protocol):
    """The port of an event bus that publishes and subscribes: `InMemoryEventBus` for tests and
    single processes, `RedisEventBus` for production. Subscribe, then open it, then publish."""


def envelope_of(given: EventEnvelope | Event) -> EventEnvelope:
    """What a bus publishes; it takes events as well as envelopes."""
    if isinstance(given, EventEnvelope):
        return given
    if not isinstance(given, Event):
        raise TypeError(
            f"expected an event, got {name_of(given)}: make one with DomainEvent(event_type, …)"
        )
    return given.to_envelope()


class BrokerEventBus(Openable):
    """Publisher and subscriber in one: it brings what any process publishes to its handlers.

    `publish` returns when the broker has the event; the handlers run later, as those of an
    `EventConsumer`: retried, and in order per aggregate. A bus without handlers only publishes. All
    processes of one group need the same handlers, since each event reaches one of them.
    """

    def __init__(
        self,
        publisher: EventPublisher,
        source: EventSource,
        handlers: Iterable[tuple[str, EventHandler]] = (),
        config: ConsumerConfig | None = None,
        *,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        on_signal: OnSignal | None = log_signals,
    ) -> None:
        self._publisher = publisher
        self._consumer = EventConsumer(
            source, (), config, scope=scope, inbox=inbox, on_signal=on_signal
        )
        self._has_handlers = self._is_open = self._is_closed = False
        for event_type, handler in check_pairs(handlers):
            self.subscribe(event_type, handler)

    def subscribe(self, event_type: str, handler: EventHandler, /) -> None:
        if self._is_open and not self._has_handlers:
            raise ConfigurationError("subscribe the first handler before the bus is opened")
        self._consumer.subscribe(event_type, handler)
        self._has_handlers = True

    def subscribe_all(self, event_types: Sequence[str], handler: EventHandler, /) -> None:
        for event_type in event_types:
            self.subscribe(event_type, handler)

    async def open(self) -> None:
        """Connect; with handlers, also begin to consume, which a closed bus cannot do again."""
        if self._is_closed and self._has_handlers:
            raise ConfigurationError(
                "a closed bus with handlers cannot be opened again: make a new one"
            )
        await open_publisher(self._publisher)
        was_open, self._is_open = self._is_open, True
        if self._has_handlers and not was_open:
            await self._consumer.start()

    async def close(self) -> None:
        """Wait for running handlers, then disconnect."""
        self._is_closed = True
        await self._consumer.stop()
        await close_publisher(self._publisher)

    @property
    def problem(self) -> str | None:
        """Why handlers are not called now, without secrets; None if they are."""
        return self._consumer.problem if self._has_handlers else None

    def __str__(self) -> str:
        return str(self._publisher)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    async def publish(self, envelope: EventEnvelope | Event, /) -> None:
        await self._publisher.publish(envelope_of(envelope))

    async def publish_all(self, envelopes: Sequence[EventEnvelope | Event], /) -> None:
        await self._publisher.publish_all([envelope_of(each) for each in envelopes])

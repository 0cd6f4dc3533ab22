"""The source: receives from one queue, in order however many processes there are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from outrider.brokers.rabbitmq.amqp import (
    CHANNEL,
    ClosedByBroker,
    ConnectionLost,
    Method,
    Wire,
    methods,
)
from outrider.brokers.rabbitmq.config import read_url
from outrider.brokers.rabbitmq.connection import Connection, translate
from outrider.brokers.rabbitmq.crash_counts import CrashCounts
from outrider.brokers.rabbitmq.dead_letters import DeadLetters
from outrider.brokers.rabbitmq.queue_plan import queue_plans
from outrider.brokers.rabbitmq.subscription import Subscription
from outrider.brokers.rabbitmq.topology import Topology
from outrider.errors import ConfigurationError
from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.brokers.rabbitmq.config import RabbitMQConfig
    from outrider.ports import Delivery

_RECEIVE_TIMEOUT_S: Final = 1.0
_PRECONDITION_FAILED: Final = 406
# No permission, not implemented. A missing queue is not permanent: it existed when it was declared.
_PERMANENT_WHEN_CONSUMING: Final = frozenset({403, 540})


class RabbitMQSource(Openable):
    """Receives from one queue: the queue of that name in the topology, else a classic queue with a
    single active consumer.

    A classic queue without a single active consumer is consumed exclusively; processes that stand
    by ask every second whether the queue is free. With `ordered=False` many processes share the
    queue, and events of an aggregate may overtake each other.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        topology: Topology | None = None,
        ordered: bool = True,
        dead_letters: str | None = None,
        config: RabbitMQConfig | None = None,
    ) -> None:
        """`dead_letters` is an exchange, and messages keep their routing key. None takes the
        dead-letter exchange of the queue, or else the queue `<queue>.dlq`."""
        address, self._config = read_url(url, config)
        self._queue = queue
        self._plans = queue_plans(queue, topology or Topology(), dead_letters, ordered=ordered)
        self._connection = Connection(address, self._config, self._prepare)
        self._subscription: Subscription | None = None
        plan = self._plans[0]  # all plans of a queue have the same dead letters
        self._publishing = Connection(address, self._config, self._declare)
        timeout = self._config.publish_timeout
        self._dead_letters = DeadLetters(self._publishing, timeout, queue, plan)
        self._crashes = CrashCounts(self._publishing, timeout, queue, ordered=ordered)

    def __repr__(self) -> str:
        return f"<RabbitMQSource {self._connection.address} queue {self._queue!r}>"

    async def open(self) -> None:
        """Connect, declare the topology and subscribe, or stand by.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._connection.closed = False
        self._publishing.closed = False
        await self._subscribed()

    async def close(self) -> None:
        """The broker delivers unacknowledged messages again; `open` makes the source usable."""
        if self._subscription is not None:
            self._subscription.send_acks()
            await self._crashes.close(clean=self._subscription.is_connected)
        # Without Basic.Cancel: after it the next consumer would get later messages first.
        await self._connection.close()
        await self._publishing.close()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        subscription = await self._subscribed()
        if subscription is None:
            await asyncio.sleep(_RECEIVE_TIMEOUT_S)
            return []
        try:
            if not await subscription.wait(_RECEIVE_TIMEOUT_S):
                return []
        except ConnectionLost as lost:
            raise translate(lost, self._connection.address, permanent=()) from lost
        await self._crashes.begin()
        found = subscription.take(limit)
        if again := [delivery for delivery in found if delivery.message.redelivered]:
            self._crashes.mark(again)
        if len(again) < len(found):
            self._crashes.end_recovery()
        return found

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if not delivery.lost and self._subscription is not None:
            self._subscription.acknowledge(delivery)
            if delivery.suspect:
                self._crashes.settled(delivery)
            await asyncio.sleep(0)  # the acks of this turn of the event loop are sent together now

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        """Publish the message unchanged, with the reason in the header `dead-letter-reason`."""
        if not delivery.lost:
            await self._dead_letters.write(delivery.message, reason)
            await self.acknowledge(delivery)

    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        await self._crashes.adjust(delivery, by)

    async def _subscribed(self) -> Subscription | None:
        """None as long as another process has the queue."""
        wire = await self._connected()
        subscription = self._subscription
        if subscription is None or subscription.active:
            return subscription
        try:
            async with asyncio.timeout(self._config.connect_timeout.total_seconds()):
                subscription.active = await self._consume(wire)
        except (ConnectionLost, TimeoutError) as error:
            address = self._connection.address
            raise translate(error, address, _PERMANENT_WHEN_CONSUMING) from error
        return subscription if subscription.active else None

    async def _connected(self) -> Wire:
        while True:
            try:
                return await self._connection.wire()
            except ConfigurationError as error:
                cause = error.__cause__
                if not isinstance(cause, ClosedByBroker) or cause.code != _PRECONDITION_FAILED:
                    raise
                if len(self._plans) == 1 or f"queue '{self._queue}' in" not in cause.reply_text:
                    hint = f"{error}; describe it in the topology as it is"
                    raise ConfigurationError(hint) from error
                self._plans.pop(0)

    async def _prepare(self, wire: Wire) -> None:
        await self._declare(wire)
        qos = methods.Basic.Qos(prefetch_count=self._config.prefetch)
        await wire.call(qos, methods.Basic.QosOk, CHANNEL)
        wire.receiver = self._subscription = Subscription(wire)

    async def _declare(self, wire: Wire) -> None:
        for method in self._plans[0].declarations:
            await wire.call(method, Method, CHANNEL)

    async def _consume(self, wire: Wire) -> bool:
        """False if another process consumes the queue exclusively."""
        exclusive = self._plans[0].exclusive
        if exclusive:
            # Ask first: a refusal costs the connection, and a line in the broker's log.
            declare = methods.Queue.Declare(queue=self._queue, passive=True)
            found = await wire.call(declare, methods.Queue.DeclareOk, CHANNEL)
            if found.consumer_count:
                return False
        consume = methods.Basic.Consume(queue=self._queue, exclusive=exclusive)
        try:
            await wire.call(consume, methods.Basic.ConsumeOk, CHANNEL)
        except ClosedByBroker as refused:
            if "in exclusive use" not in refused.reply_text:
                raise
            return False
        return True

"""The source: receives from one queue, and keeps its order however many processes there are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pamqp import commands
from pamqp.base import Frame

from outrider.brokers.rabbitmq.amqp.wire import Closed, Lost, Wire
from outrider.brokers.rabbitmq.config import RabbitMQSourceConfig, read_url
from outrider.brokers.rabbitmq.connection import Connection, translate
from outrider.brokers.rabbitmq.dead_letters import DeadLetters
from outrider.brokers.rabbitmq.messages import CHANNEL
from outrider.brokers.rabbitmq.queue_plan import queue_plans
from outrider.brokers.rabbitmq.subscription import Subscription
from outrider.brokers.rabbitmq.topology import Topology
from outrider.errors import ConfigurationError
from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.ports import Delivery

_PATIENCE: Final = 1.0
_INEQUIVALENT: Final = 406
# No permission, no such feature; a queue that is missing was there a moment ago.
_WHEN_CONSUMING: Final = frozenset({403, 540})


class RabbitMQSource(Openable):
    """Receives from one queue: the one of that name in the topology, else one with a single
    active consumer.

    A classic queue that has not that is consumed exclusively, and who stands by asks every second
    whether it is free. With `ordered=False` many processes share the work, and order is given up.
    """

    def __init__(
        self,
        url: str,
        *,
        queue: str,
        topology: Topology | None = None,
        ordered: bool = True,
        config: RabbitMQSourceConfig | None = None,
    ) -> None:
        url, self._config = read_url(url, config or RabbitMQSourceConfig())
        self._queue = queue
        letters = self._config.dead_letter_exchange
        self._plans = queue_plans(queue, topology or Topology(), letters, ordered=ordered)
        self._connection = Connection(url, self._config, self._prepare)
        self._subscription: Subscription | None = None
        exchange, key = self._plans[0].dead_letter_exchange, self._plans[0].dead_letter_key
        self._dead_letters = DeadLetters(url, self._config, self._declare, exchange, key)

    def __repr__(self) -> str:
        return f"<RabbitMQSource {self._connection.address} queue {self._queue!r}>"

    async def open(self) -> None:
        """Connect, declare the topology and subscribe, or stand by.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._connection.closed = False
        self._dead_letters.reopen()
        await self._subscribed()

    async def close(self) -> None:
        """What is not acknowledged goes back; `open` makes the source usable again."""
        if self._subscription is not None:
            self._subscription.tell()
        # Nothing is cancelled before: the next one would begin behind what is still in hand.
        await self._connection.close()
        await self._dead_letters.close()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        subscription = await self._subscribed()
        if subscription is None:
            await asyncio.sleep(_PATIENCE)
            return []
        try:
            return await subscription.take(limit, _PATIENCE)
        except Lost as lost:
            raise translate(lost, self._connection.address, ()) from lost

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if not delivery.lost and self._subscription is not None:
            self._subscription.acknowledge(delivery)
            await asyncio.sleep(0)  # all that are acknowledged in one turn of the loop leave now

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        """Publish it as it is, with the reason in the header `x-outrider-reason`."""
        if not delivery.lost:
            await self._dead_letters.put(delivery.message, self._queue, reason)
            await self.acknowledge(delivery)

    async def _subscribed(self) -> Subscription | None:
        """None as long as it is another's turn."""
        wire = await self._connected()
        subscription = self._subscription
        if subscription is None or subscription.active:
            return subscription
        try:
            async with asyncio.timeout(self._config.connect_timeout.total_seconds()):
                subscription.active = await self._consume(wire)
        except (Lost, TimeoutError) as error:
            raise translate(error, self._connection.address, _WHEN_CONSUMING) from error
        return subscription if subscription.active else None

    async def _connected(self) -> Wire:
        while True:
            try:
                return await self._connection.wire()
            except ConfigurationError as error:
                cause = error.__cause__
                if not isinstance(cause, Closed) or cause.code != _INEQUIVALENT:
                    raise
                if len(self._plans) == 1 or f"queue '{self._queue}' in" not in str(cause):
                    hint = f"{error}; describe it in the topology as it is"
                    raise ConfigurationError(hint) from error
                self._plans.pop(0)

    async def _prepare(self, wire: Wire) -> None:
        await self._declare(wire)
        qos = commands.Basic.Qos(prefetch_count=self._config.prefetch)
        await wire.call(qos, commands.Basic.QosOk, CHANNEL)
        wire.receiver = self._subscription = Subscription(wire)

    async def _declare(self, wire: Wire) -> None:
        for method in self._plans[0].declarations:
            await wire.call(method, Frame, CHANNEL)

    async def _consume(self, wire: Wire) -> bool:
        """Whether the queue lets us in."""
        exclusive = self._plans[0].exclusive
        if exclusive:
            # To be refused costs the connection, and a line in the broker's log.
            asking = commands.Queue.Declare(queue=self._queue, passive=True)
            found = await wire.call(asking, commands.Queue.DeclareOk, CHANNEL)
            if found.consumer_count:
                return False
        consume = commands.Basic.Consume(queue=self._queue, exclusive=exclusive)
        try:
            await wire.call(consume, commands.Basic.ConsumeOk, CHANNEL)
        except Closed as refused:
            if "in exclusive use" not in str(refused):
                raise
            return False
        return True

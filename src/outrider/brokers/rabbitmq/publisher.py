"""The publisher, and what each of RabbitMQ's answers means for an event."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from pamqp.base import Frame

from outrider.brokers.rabbitmq.amqp.wire import Lost, Wire
from outrider.brokers.rabbitmq.batch import Batch
from outrider.brokers.rabbitmq.config import RabbitMQConfig, read_url
from outrider.brokers.rabbitmq.connection import Connection, translate
from outrider.brokers.rabbitmq.durability import check_durability
from outrider.brokers.rabbitmq.messages import CHANNEL, MessageWriter, Unsendable
from outrider.brokers.rabbitmq.topology import Topology, declarations
from outrider.errors import BrokerUnavailable, OutriderError
from outrider.lifecycle import Openable
from outrider.outcomes import Outcome, Refused, Unknown, raise_unless_accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import CheckResult

_CHUNK: Final = 65_536
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than configured max size (\d+)")
_NO_TOPIC: Final = re.compile(r"access to topic '(.+?)' in exchange")
_NO_PERMISSION: Final = frozenset({403})


class RabbitMQPublisher(Openable):
    """Sends events to one exchange, with their type as routing key.

    It opens with the first call, and again with the first call after the connection was lost. A
    call that is cancelled or times out drops the connection, unless the broker blocks it. Calls
    may overlap as long as no aggregate is in two of them.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "messaging",
        topology: Topology | None = None,
        config: RabbitMQConfig | None = None,
    ) -> None:
        url, self._config = read_url(url, config or RabbitMQConfig())
        self._connection = Connection(url, self._config, self._declare)
        self._exchange = exchange
        self._topology = (topology or Topology()).with_exchange(exchange)
        self._declarations = declarations(self._topology)
        self._writer = MessageWriter(exchange, self._config.source)
        self._max_size = self._config.max_message_size

    def __repr__(self) -> str:
        return f"<RabbitMQPublisher {self._connection.address} exchange {self._exchange!r}>"

    async def open(self) -> None:
        """Connect and declare the topology.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        await self._connection.open()

    async def close(self) -> None:
        """What is in flight becomes unknown; `open` makes the publisher usable again."""
        await self._connection.close()

    async def check_durability(self) -> list[CheckResult]:
        """What a confirmation is worth here."""
        return check_durability(self._topology)

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch = Batch(envelopes)
        limit = self._config.publish_timeout
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await self._deliver(batch)
        except TimeoutError:
            blocked = self._connection.blocked
            why = f"blocked by the broker: {blocked}" if blocked else f"no answer within {limit}"
            _give_up(batch, BrokerUnavailable(f"RabbitMQ at {self._connection.address}: {why}"))
        except OutriderError as error:
            _give_up(batch, error)
        raise_unless_accepted(batch.outcomes)

    async def _deliver(self, batch: Batch) -> None:
        if batch.settled:
            return
        wire = await self._connection.wire()
        try:
            await self._send_all(wire, batch)
        except Lost as lost:
            error = translate(lost, self._connection.address, _NO_PERMISSION)
            batch.end(Unknown(str(error), error), self._verdict(lost, error))
        except BaseException:
            # A blocked broker takes what is in flight once it unblocks. Kept open, the connection
            # lets nothing more out until then; a new one would send another copy with every call.
            if batch.in_flight and not (wire.blocked and wire.is_watched):
                wire.drop(Lost("a call on the same connection was given up"))
            raise

    async def _send_all(self, wire: Wire, batch: Batch) -> None:
        while not batch.settled:
            batch.changed.clear()
            await self._send_ready(wire, batch)
            if not batch.settled:
                await batch.changed.wait()
            if batch.lost_by is not None:
                raise batch.lost_by

    async def _send_ready(self, wire: Wire, batch: Batch) -> None:
        """Write what may be sent, in pieces that the broker can begin with meanwhile."""
        messages: list[bytes] = []
        indexes: list[int] = []
        size = 0
        for index in batch.take_ready():
            try:
                message = self._write(batch.envelopes[index], wire.frame_max)
            except Unsendable as error:
                batch.refuse(index, f"not sendable: {error}")
                continue
            messages.append(message)
            indexes.append(index)
            size += len(message)
            if size >= _CHUNK:
                await _flush(wire, batch, messages, indexes)
                messages, indexes, size = [], [], 0
        if indexes:
            await _flush(wire, batch, messages, indexes)

    def _write(self, envelope: EventEnvelope, frame_max: int) -> bytes:
        size = len(envelope.data)
        if self._max_size is not None and size > self._max_size:
            raise Unsendable(f"it has {size} bytes, {self._max_size} are allowed")
        return self._writer.write(envelope, frame_max)

    def _verdict(self, lost: Lost, error: OutriderError) -> Callable[[EventEnvelope], Outcome]:
        """The broker closes the channel on all for the fault of one, which its words may betray."""
        text = str(lost)
        if found := _TOO_LARGE.search(text):
            limit = self._max_size = int(found[1])
        elif found := _NO_TOPIC.search(text):
            limit = None
        else:
            return lambda _: Unknown(str(error), error)
        forbidden = found[1]

        def verdict(envelope: EventEnvelope) -> Outcome:
            guilty = len(envelope.data) > limit if limit else envelope.event_type == forbidden
            return Refused(text) if guilty else Unknown(str(error), error)

        return verdict

    async def _declare(self, wire: Wire) -> None:
        for method in self._declarations:
            await wire.call(method, Frame, CHANNEL)


async def _flush(wire: Wire, batch: Batch, messages: list[bytes], indexes: list[int]) -> None:
    await wire.free()
    wire.publish(b"".join(messages), batch, indexes)
    batch.sent(indexes)


def _give_up(batch: Batch, error: OutriderError) -> None:
    unknown = Unknown(str(error), error)
    batch.end(unknown, lambda _: unknown)

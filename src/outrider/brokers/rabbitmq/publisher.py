"""The publisher, and what each answer of RabbitMQ means for an event."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from outrider.brokers.rabbitmq.amqp import CHANNEL, ConnectionLost, Method, Unsendable, Wire
from outrider.brokers.rabbitmq.batch import Batch
from outrider.brokers.rabbitmq.config import read_url
from outrider.brokers.rabbitmq.connection import Connection, translate
from outrider.brokers.rabbitmq.durability import check_topology
from outrider.brokers.rabbitmq.messages import MessageWriter
from outrider.brokers.rabbitmq.topology import Topology, declarations
from outrider.errors import BrokerUnavailable, OutriderError
from outrider.lifecycle import Openable
from outrider.outcomes import Outcome, Refused, Unknown, raise_unless_accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.brokers.rabbitmq.config import RabbitMQConfig
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import CheckResult

_CHUNK_BYTES: Final = 65_536
_DECLARE_INTERVAL_S: Final = 1.0
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than configured max size (\d+)")
_NO_TOPIC: Final = re.compile(r"access to topic '(.+?)' in exchange")
_ACCESS_REFUSED: Final = frozenset({403})


class RabbitMQPublisher(Openable):
    """Publishes events to one exchange, with the event type as routing key.

    It connects with the first call, and again with the first call after the connection was lost. A
    call that is cancelled or times out drops the connection, unless the broker blocks it. Calls
    may overlap as long as no aggregate is in two of them.
    """

    def __init__(
        self,
        url: str,
        exchange: str = "messaging",
        *,
        topology: Topology | None = None,
        config: RabbitMQConfig | None = None,
    ) -> None:
        address, self._config = read_url(url, config)
        self._connection = Connection(address, self._config, self._declare)
        self._exchange = exchange
        self._topology = (topology or Topology()).with_exchange(exchange)
        self._declarations = declarations(self._topology)
        self._writer = MessageWriter(
            exchange, self._config.cloudevents_source, mandatory=self._config.mandatory
        )
        self._max_size = self._config.max_message_size
        self._next_declaration = 0.0

    def __repr__(self) -> str:
        return f"<RabbitMQPublisher {self._connection.address} exchange {self._exchange!r}>"

    async def open(self) -> None:
        """Connect and declare the topology.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        await self._connection.open()

    async def close(self) -> None:
        """Events in flight become unknown; `open` makes the publisher usable again."""
        await self._connection.close()

    async def check_durability(self) -> list[CheckResult]:
        """Whether the topology is there, and keeps what it confirmed; creates nothing."""
        connection = Connection(self._connection.address, self._config, _declare_nothing)
        try:
            async with asyncio.timeout(self._config.connect_timeout.total_seconds()):
                return await check_topology(connection, self._topology)
        except TimeoutError as error:
            raise translate(error, connection.address) from error
        finally:
            await connection.close()

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch = Batch(envelopes)
        limit = self._config.publish_timeout
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await self._deliver(batch)
                if batch.has_unroutable and self._topology.queues:
                    await self._declare_again()
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
        except ConnectionLost as lost:
            error = translate(lost, self._connection.address, _ACCESS_REFUSED)
            batch.end(Unknown(str(error), error), self._outcome_in_flight(lost, error))
        except BaseException:
            # A blocked broker takes the events in flight once it unblocks. Until then the
            # connection sends nothing more; a new connection would send a copy with every call.
            if batch.in_flight and not (wire.blocked and wire.has_heartbeat):
                wire.drop(ConnectionLost("a call on the same connection was given up"))
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
        """Send in chunks, so that the broker works on the first while we write the next."""
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
            if size >= _CHUNK_BYTES:
                await _flush(wire, batch, messages, indexes)
                messages, indexes, size = [], [], 0
        if indexes:
            await _flush(wire, batch, messages, indexes)

    def _write(self, envelope: EventEnvelope, frame_max: int) -> bytes:
        size = len(envelope.data)
        if self._max_size is not None and size > self._max_size:
            raise Unsendable(f"it has {size} bytes, {self._max_size} are allowed")
        return self._writer.write(envelope, frame_max)

    def _outcome_in_flight(
        self, lost: ConnectionLost, error: OutriderError
    ) -> Callable[[EventEnvelope], Outcome]:
        """The broker closes the channel for the fault of one event; its text may tell which."""
        text = str(lost)
        if found := _TOO_LARGE.search(text):
            limit = self._max_size = int(found[1])
        elif found := _NO_TOPIC.search(text):
            limit = None
        else:
            return lambda _: Unknown(str(error), error)
        forbidden = found[1]

        def outcome(envelope: EventEnvelope) -> Outcome:
            at_fault = len(envelope.data) > limit if limit else envelope.event_type == forbidden
            return Refused(text) if at_fault else Unknown(str(error), error)

        return outcome

    async def _declare_again(self) -> None:
        """A queue of the topology may have been deleted. At most once in a while."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_declaration:
            self._next_declaration = now + _DECLARE_INTERVAL_S
            with suppress(OutriderError):  # the events wait in any case, and their reason is told
                await self._connection.prepare_again()

    async def _declare(self, wire: Wire) -> None:
        for method in self._declarations:
            await wire.call(method, Method, CHANNEL)


async def _declare_nothing(_: Wire) -> None: ...


async def _flush(wire: Wire, batch: Batch, messages: list[bytes], indexes: list[int]) -> None:
    await wire.writable()
    wire.publish(b"".join(messages), batch, indexes)
    batch.sent(indexes)


def _give_up(batch: Batch, error: OutriderError) -> None:
    unknown = Unknown(str(error), error)
    batch.end(unknown, lambda _: unknown)

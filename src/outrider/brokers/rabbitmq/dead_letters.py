"""Where a source sets messages aside, as they are and with the reason, for people to look into."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from outrider.brokers.rabbitmq.amqp.properties import (
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    USER_ID,
    read_properties,
    read_table,
    text,
    write_header,
    write_table,
)
from outrider.brokers.rabbitmq.amqp.wire import NACKED, Lost
from outrider.brokers.rabbitmq.connection import Connection, translate
from outrider.brokers.rabbitmq.messages import FRAME_OVERHEAD, in_frames, publish_frame
from outrider.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outrider.brokers.rabbitmq.amqp.wire import Wire
    from outrider.brokers.rabbitmq.config import ConnectionConfig
    from outrider.brokers.rabbitmq.received import Message

_MOST_BYTES: Final = 1_000
_PERSISTENT: Final = b"\x02"

# By the first two the broker would send copies elsewhere; the last is its own count.
_NOT_PASSED_ON: Final = frozenset({b"CC", b"BCC", b"x-delivery-count"})


class DeadLetters:
    """Publishes to an exchange, or to a queue through the default one.

    Over a connection of its own, opened for the first letter: an alarm of the broker blocks every
    connection that publishes, and would hold up the acknowledgements too.
    """

    def __init__(
        self,
        url: str,
        config: ConnectionConfig,
        declare: Callable[[Wire], Awaitable[None]],
        exchange: str,
        routing_key: str | None,
    ) -> None:
        """Without a routing key, each message keeps its own."""
        self._connection = Connection(url, config, declare)
        self._timeout = config.publish_timeout
        self._exchange = exchange.encode()
        self._routing_key = None if routing_key is None else routing_key.encode()

    def reopen(self) -> None:
        self._connection.closed = False

    async def close(self) -> None:
        await self._connection.close()

    async def put(self, message: Message, queue: str, reason: str) -> None:
        """Returns when the broker has it, and raises BrokerUnavailable otherwise."""
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                await self._publish(message, queue, reason)
        except TimeoutError:
            blocked = self._connection.blocked
            why = f"blocked by the broker: {blocked}" if blocked else "no answer in time"
            raise self._unavailable(why) from None
        except Lost as lost:
            raise translate(lost, self._connection.address, ()) from lost
        except ConfigurationError as error:
            raise BrokerUnavailable(str(error)) from error

    async def _publish(self, message: Message, queue: str, reason: str) -> None:
        wire = await self._connection.wire()
        await wire.free()
        routing_key = message.routing_key if self._routing_key is None else self._routing_key
        publish = publish_frame(_short(self._exchange), _short(routing_key))
        header = _header(message, queue, reason, wire.frame_max)
        letter = _Letter(message, routing_key)
        wire.publish(in_frames(publish, header, message.body, wire.frame_max), letter, (0,))
        try:
            refusal = await letter.answer
        except asyncio.CancelledError:
            # A blocked broker takes it once it unblocks; see the publisher.
            if not (wire.blocked and wire.is_watched):
                wire.drop(Lost("a call on the same connection was given up"))
            raise
        if refusal is not None:
            if refusal != NACKED:
                wire.drop(Lost(refusal))  # the next one declares again where it goes to
            raise self._unavailable(refusal)

    def _unavailable(self, why: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"RabbitMQ at {self._connection.address}: dead letter: {why}")


class _Letter:
    """One message on its way."""

    def __init__(self, message: Message, routing_key: bytes) -> None:
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._message, self._routing_key = message, routing_key

    def message_of(self, _: int, /) -> tuple[str, str]:
        message_id = _read(self._message)[0].get(MESSAGE_ID, b"\0")[1:]
        return message_id.decode(errors="replace"), self._routing_key.decode(errors="replace")

    def confirmed(self, _: int, refusal: str | None, /) -> None:
        if not self.answer.done():
            self.answer.set_result(refusal)

    def lost(self, error: Lost, /) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def _header(message: Message, queue: str, reason: str, frame_max: int) -> bytes:
    """All that the message came with, unless it cannot be read or leaves no room."""
    said = reason.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")
    ours = {
        b"x-outrider-reason": text(said),
        b"x-outrider-queue": text(queue),
        b"x-outrider-exchange": text(message.exchange.decode(errors="replace")),
        b"x-outrider-routing-key": text(message.routing_key.decode(errors="replace")),
    }
    properties, headers = _read(message)
    # A letter must not vanish after a while, and the broker takes only our own name.
    for unwanted in (EXPIRATION, USER_ID):
        properties.pop(unwanted, None)
    kept = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
    properties |= {DELIVERY_MODE: _PERSISTENT, HEADERS: write_table(kept | ours)}
    header = write_header(properties, len(message.body))
    if len(header) + FRAME_OVERHEAD <= frame_max:
        return header
    return write_header(properties | {HEADERS: write_table(ours)}, len(message.body))


def _read(message: Message) -> tuple[dict[int, bytes], dict[bytes, bytes]]:
    try:
        properties = read_properties(message.header)
        return properties, read_table(properties.get(HEADERS, b""))
    except Exception:  # noqa: BLE001 - anybody may have sent anything
        return {}, {}


def _short(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw

"""Dead letters: messages that cannot be handled, published unchanged with the reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from outrider.brokers.dead_letter_headers import PREFIX, dead_letter_headers
from outrider.brokers.rabbitmq.amqp import (
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    NACKED,
    PERSISTENT,
    USER_ID,
    ConnectionLost,
    fits_in_frame,
    message_frames,
    publish_frame,
    read_properties,
    read_table,
    short_bytes,
    string_value,
    write_header,
    write_table,
)
from outrider.brokers.rabbitmq.connection import Connection, translate
from outrider.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outrider.brokers.rabbitmq.amqp import Message, Wire
    from outrider.brokers.rabbitmq.config import Address, RabbitMQConfig
    from outrider.brokers.rabbitmq.queue_plan import QueuePlan

_PREFIX: Final = PREFIX.encode()

# By the first two the broker would send copies elsewhere; the last is the broker's own count.
_NOT_COPIED: Final = frozenset({b"CC", b"BCC", b"x-delivery-count"})


class DeadLetters:
    """Publishes to an exchange, or to a queue through the default exchange.

    It has a connection of its own, opened for the first dead letter. An alarm of the broker blocks
    every connection that publishes; on a shared one it would hold up the acknowledgements too.
    """

    def __init__(
        self,
        address: Address,
        config: RabbitMQConfig,
        queue: str,
        plan: QueuePlan,
        declare: Callable[[Wire], Awaitable[None]],
    ) -> None:
        self._connection = Connection(address, config, declare)
        self._timeout = config.publish_timeout
        self._queue = queue
        self._exchange = plan.dead_letter_exchange.encode()
        key = plan.dead_letter_key
        self._routing_key = None if key is None else key.encode()

    def open(self) -> None:
        self._connection.closed = False

    async def close(self) -> None:
        await self._connection.close()

    async def write(self, message: Message, reason: str) -> None:
        """Returns when the broker has stored it, and raises BrokerUnavailable otherwise."""
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                await self._publish(message, reason)
        except TimeoutError:
            blocked = self._connection.blocked
            why = f"blocked by the broker: {blocked}" if blocked else "no answer in time"
            raise self._unavailable(why) from None
        except ConnectionLost as lost:
            raise translate(lost, self._connection.address, permanent=()) from lost
        except ConfigurationError as error:
            raise BrokerUnavailable(str(error)) from error

    async def _publish(self, message: Message, reason: str) -> None:
        wire = await self._connection.wire()
        await wire.writable()
        key = message.routing_key if self._routing_key is None else self._routing_key
        publish = publish_frame(short_bytes(self._exchange), short_bytes(key))
        header = self._header(message, reason, wire.frame_max)
        sent = _SentLetter(message, key)
        wire.publish(message_frames(publish, header, message.body, wire.frame_max), sent, (0,))
        try:
            refusal = await sent.refusal
        except asyncio.CancelledError:
            # A blocked broker takes the message once it unblocks; see the publisher.
            if not (wire.blocked and wire.has_heartbeat):
                wire.drop(ConnectionLost("a call on the same connection was given up"))
            raise
        if refusal is not None:
            if refusal != NACKED:
                # Not routable: the next connection declares exchange and queue again.
                wire.drop(ConnectionLost(refusal))
            raise self._unavailable(refusal)

    def _header(self, message: Message, reason: str, frame_max: int) -> bytes:
        """All headers that the message came with, unless they are unreadable or leave no room."""
        added = dead_letter_headers(
            reason=reason,
            origin=self._queue,
            address="/".join(
                part.decode(errors="replace") for part in (message.exchange, message.routing_key)
            ),
            group=self._queue,
        )
        ours = {name.encode(): string_value(value) for name, value in added.items()}
        properties, headers = _read(message)
        # A dead letter must not expire, and the broker refuses any user id but that of our login.
        for unwanted in (EXPIRATION, USER_ID):
            properties.pop(unwanted, None)
        kept = {
            name: value
            for name, value in headers.items()
            if name not in _NOT_COPIED and not name.startswith(_PREFIX)
        }
        properties |= {DELIVERY_MODE: PERSISTENT, HEADERS: write_table(kept | ours)}
        header = write_header(properties, len(message.body))
        if fits_in_frame(header, frame_max):
            return header
        return write_header(properties | {HEADERS: write_table(ours)}, len(message.body))

    def _unavailable(self, why: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"RabbitMQ at {self._connection.address}: dead letter: {why}")


class _SentLetter:
    """A dead letter that the broker has not confirmed yet."""

    def __init__(self, message: Message, routing_key: bytes) -> None:
        self.refusal: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None if the broker has stored it."""
        self._message, self._routing_key = message, routing_key

    def message_of(self, _: int, /) -> tuple[str, str]:
        message_id = _read(self._message)[0].get(MESSAGE_ID, b"\0")[1:]
        return message_id.decode(errors="replace"), self._routing_key.decode(errors="replace")

    def confirmed(self, _: int, refusal: str | None, /) -> None:
        if not self.refusal.done():
            self.refusal.set_result(refusal)

    def lost(self, error: ConnectionLost, /) -> None:
        if not self.refusal.done():
            self.refusal.set_exception(error)


def _read(message: Message) -> tuple[dict[int, bytes], dict[bytes, bytes]]:
    try:
        properties = read_properties(message.header)
        return properties, read_table(properties.get(HEADERS, b""))
    except Exception:  # noqa: BLE001 - anybody may have sent anything
        return {}, {}

"""Dead letters: messages that cannot be handled, published unchanged with the reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from outrider.brokers.dead_letter_headers import PREFIX, dead_letter_headers
from outrider.brokers.rabbitmq.amqp import (
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    PERSISTENT,
    USER_ID,
    ConnectionLost,
    fits_in_frame,
    read_properties,
    read_table,
    string_value,
    write_header,
    write_table,
)
from outrider.brokers.rabbitmq.connection import publish_one, translate
from outrider.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from datetime import timedelta

    from outrider.brokers.rabbitmq.amqp import Message
    from outrider.brokers.rabbitmq.connection import Connection
    from outrider.brokers.rabbitmq.queue_plan import QueuePlan

_PREFIX: Final = PREFIX.encode()

# By the first two the broker would send copies elsewhere; the last is the broker's own count.
_NOT_COPIED: Final = frozenset({b"CC", b"BCC", b"x-delivery-count"})


class DeadLetters:
    """Publishes to an exchange, or to a queue through the default exchange.

    The connection is opened for the first dead letter. It is not the one that receives: an alarm of
    the broker blocks every connection that publishes, and would hold up the acknowledgements too.
    """

    def __init__(
        self,
        connection: Connection,
        timeout: timedelta,
        queue: str,
        plan: QueuePlan,
    ) -> None:
        self._connection, self._timeout, self._queue = connection, timeout, queue
        self._exchange = plan.dead_letter_exchange.encode()
        key = plan.dead_letter_key
        self._routing_key = None if key is None else key.encode()

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
        key = message.routing_key if self._routing_key is None else self._routing_key
        header = self._header(message, reason, wire.frame_max)
        try:
            await publish_one(wire, self._exchange, key, header, message.body)
        except BrokerUnavailable as refused:
            raise self._unavailable(str(refused)) from None

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


def _read(message: Message) -> tuple[dict[int, bytes], dict[bytes, bytes]]:
    try:
        properties = read_properties(message.header)
        return properties, read_table(properties.get(HEADERS, b""))
    except Exception:  # noqa: BLE001 - anybody may have sent anything
        return {}, {}

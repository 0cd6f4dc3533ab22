"""A connection that opens when it is needed, and what the broker's errors mean for the caller."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from outrider.brokers.network_errors import Diagnosis, network_diagnosis
from outrider.brokers.rabbitmq.amqp import (
    MESSAGE_ID,
    NACKED,
    ClosedByBroker,
    ConnectionLost,
    Wire,
    connect,
    message_frames,
    publish_frame,
    read_properties,
    short_bytes,
)
from outrider.brokers.rabbitmq.config import tls_context
from outrider.errors import BrokerUnavailable, OutriderError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from outrider.brokers.rabbitmq.config import Address, RabbitMQConfig

# Reply codes that waiting does not cure, unless the reply text speaks of a passing problem.
_PERMANENT_WHEN_OPENING: Final = frozenset({402, 403, 404, 405, 406, 503, 530, 540})
_TEMPORARY_TEXT: Final = re.compile(r"limit|is down")


class Connection:
    """Holds one wire at a time. After a loss, the next call connects and prepares a new wire."""

    def __init__(
        self, address: Address, config: RabbitMQConfig, prepare: Callable[[Wire], Awaitable[None]]
    ) -> None:
        self.address = address
        self._tls = tls_context(address, config)
        self._config, self._prepare = config, prepare
        self._opening = asyncio.Lock()
        self._wire: Wire | None = None
        self.closed = False
        """As long as it is set, no new wire is made."""

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no messages at the moment."""
        return self._wire.blocked if self._wire else None

    async def open(self) -> None:
        """Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not."""
        self.closed = False
        await self.wire()

    async def close(self) -> None:
        self.closed = True
        async with self._opening:
            wire, self._wire = self._wire, None
            if wire is not None:
                await wire.close()

    async def wire(self) -> Wire:
        async with self._opening:
            if self.closed:
                raise BrokerUnavailable(f"RabbitMQ at {self.address}: closed by us")
            if self._wire is not None and self._wire.error is not None:
                self._wire.abort(self._wire.error)
                self._wire = None
            if self._wire is None:
                self._wire = await self._connect()
            return self._wire

    async def prepare_again(self) -> None:
        """On a wire of its own: the broker may close it, and must not close the one in use."""
        wire = await self._connect()
        await wire.close()

    async def _connect(self) -> Wire:
        try:
            async with asyncio.timeout(self._config.connect_timeout.total_seconds()):
                wire = await connect(self.address, self._tls, self._heartbeat())
                try:
                    await self._prepare(wire)
                except BaseException:
                    wire.abort(ConnectionLost("not opened"))
                    raise
                return wire
        except (ConnectionLost, OSError, UnicodeError) as error:
            raise translate(error, self.address) from error

    def _heartbeat(self) -> int:
        if self.address.heartbeat is not None:
            return self.address.heartbeat
        return int(self._config.heartbeat.total_seconds()) if self._config.heartbeat else 0


def translate(
    error: Exception, address: object, permanent: Collection[int] = _PERMANENT_WHEN_OPENING
) -> OutriderError:
    """ConfigurationError if the broker closed with one of these codes, else BrokerUnavailable."""
    diagnosis = network_diagnosis(error)
    if diagnosis is None:
        is_permanent = (
            isinstance(error, ClosedByBroker)
            and error.code in permanent
            and not _TEMPORARY_TEXT.search(error.reply_text)
        )
        # The text of a lost connection is our own, or was checked to quote no value.
        known = isinstance(error, ConnectionLost)
        diagnosis = Diagnosis(is_permanent, str(error) if known else type(error).__name__)
    return diagnosis.error("RabbitMQ", address, error)


async def publish_one(wire: Wire, exchange: bytes, key: bytes, header: bytes, body: bytes) -> None:
    """Returns when the broker has stored the message, and raises BrokerUnavailable otherwise."""
    await wire.writable()
    publish = publish_frame(short_bytes(exchange), short_bytes(key))
    sent = _SentMessage(header, key)
    wire.publish(message_frames(publish, header, body, wire.frame_max), sent, (0,))
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
        raise BrokerUnavailable(refusal)


class _SentMessage:
    """A message that the broker has not confirmed yet."""

    def __init__(self, header: bytes, routing_key: bytes) -> None:
        self.refusal: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None if the broker has stored it."""
        self._header, self._routing_key = header, routing_key

    def message_of(self, _: int, /) -> tuple[str, str]:
        message_id = read_properties(self._header).get(MESSAGE_ID, b"\0")[1:]
        return message_id.decode(errors="replace"), self._routing_key.decode(errors="replace")

    def confirmed(self, _: int, refusal: str | None, /) -> None:
        if not self.refusal.done():
            self.refusal.set_result(refusal)

    def lost(self, error: ConnectionLost, /) -> None:
        if not self.refusal.done():
            self.refusal.set_exception(error)

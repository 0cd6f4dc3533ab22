"""A connection that opens when it is needed, and what the broker's errors mean for the caller."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING, Final

from outrider.brokers.rabbitmq.address import Address, parse_url
from outrider.brokers.rabbitmq.amqp.login import connect
from outrider.brokers.rabbitmq.amqp.wire import Closed, Lost, Wire
from outrider.brokers.rabbitmq.config import ConnectionConfig, tls_context
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

# Reply codes that no waiting cures, unless the text says so.
_MAY_PASS: Final = re.compile(r"limit|is down")
_WHEN_OPENING: Final = frozenset({402, 403, 404, 405, 406, 503, 530, 540})


class Connection:
    """One wire at a time; after it was lost the next call makes a new one, and prepares it."""

    def __init__(
        self, url: str, config: ConnectionConfig, prepare: Callable[[Wire], Awaitable[None]]
    ) -> None:
        self.address = parse_url(url)
        self._tls = tls_context(self.address, config)
        self._config, self._prepare = config, prepare
        self._opening = asyncio.Lock()
        self._wire: Wire | None = None
        self.closed = False
        """Once it is, no new wire is made."""

    @property
    def blocked(self) -> str | None:
        """Why the broker takes nothing at the moment."""
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

    async def _connect(self) -> Wire:
        try:
            async with asyncio.timeout(self._config.connect_timeout.total_seconds()):
                wire = await connect(self.address, self._tls, self._heartbeat())
                try:
                    await self._prepare(wire)
                except BaseException:
                    wire.abort(Lost("not opened"))
                    raise
                return wire
        except (Lost, OSError, UnicodeError) as error:
            raise translate(error, self.address) from error

    def _heartbeat(self) -> int:
        if self.address.heartbeat is not None:
            return self.address.heartbeat
        return int(self._config.heartbeat.total_seconds()) if self._config.heartbeat else 0


def translate(
    error: Exception, address: Address, hopeless: Collection[int] = _WHEN_OPENING
) -> OutriderError:
    match error:
        case Closed():
            for_ever = error.code in hopeless and not _MAY_PASS.search(str(error))
            why = str(error)
        case ssl.SSLCertVerificationError():
            for_ever, why = True, f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            cut_off = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            for_ever, why = not cut_off, f"no TLS: {error.reason}"
        case UnicodeError():
            for_ever, why = True, "the host's name is not valid"
        case TimeoutError():
            for_ever, why = False, "no connection in time"
        case OSError():
            for_ever, why = False, error.strerror or str(error)
        case _:
            for_ever, why = False, str(error)
    kind = ConfigurationError if for_ever else BrokerUnavailable
    translated = kind(f"RabbitMQ at {address}: {why}")
    translated.__cause__ = error
    return translated

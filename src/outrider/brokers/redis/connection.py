"""Connections to one Redis, and what its errors mean; a call has a connection to itself."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from hiredis import pack_command
from redis import exceptions

from outrider.brokers.redis.config import Address
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Connection

    from outrider.brokers.redis.config import RedisConfig

Command = tuple[str | bytes | int, ...]

_MOST: Final = 8

# What no waiting cures.
_NEVER: Final = re.compile("^WRONGTYPE|^DB index|^unknown (sub)?command|syntax error|exhausted")


def pack(command: Command) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type] # takes any number of them
    return packed


class Link:
    """One connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: asyncio.WriteTransport | None = None

    async def connect(self) -> None:
        await self._connection.connect()  # type: ignore[no-untyped-call]
        writer = self._connection._writer
        self._transport = writer.transport if writer is not None else None

    @property
    def is_alive(self) -> bool:
        """As far as anybody has noticed."""
        reader = self._connection._reader
        return reader is not None and not reader.at_eof() and reader.exception() is None

    async def ask(self, *commands: Command) -> list[Any]:
        """All in one write; a reply that is an error is in its place."""
        return await self.exchange(b"".join(map(pack, commands)), len(commands))

    async def exchange(self, packed: bytes, replies: int) -> list[Any]:
        await self._connection.send_packed_command(packed)
        found = []
        for _ in range(replies):
            try:
                found.append(await self._connection.read_response())
            except exceptions.ResponseError as error:
                found.append(error)
        return found

    async def drop(self) -> None:
        if self._transport is not None:
            # The client's own way would first send what was given up, however long that takes.
            self._transport.abort()
        await self._connection.disconnect(nowait=True)


class ConnectionPool:
    """Connects when needed, a few times at most, and keeps a connection for the next call if
    all its replies came."""

    def __init__(
        self,
        url: str,
        config: RedisConfig,
        check: Callable[[Link], Awaitable[None]] | None = None,
    ) -> None:
        self.address = Address(url, config)
        self._limit = config.call_timeout.total_seconds()
        self._check = check
        self._room = asyncio.Semaphore(_MOST)
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._closed = False

    def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        links, self._idle = [*self._idle, *self._busy], []
        for link in links:
            await link.drop()

    @asynccontextmanager
    async def link(self, waiting: float = 0.0) -> AsyncIterator[Link]:
        """For some calls in a row, within one deadline; `waiting` is what the server may take."""
        try:
            async with asyncio.timeout(self._limit + waiting), self._room, self._taken() as link:
                yield link
        except (exceptions.RedisError, OSError) as error:
            raise self.translate(error) from error

    async def ask(self, *commands: Command) -> list[Any]:
        """All replies, none of them an error."""
        async with self.link() as link:
            return self.checked(await link.ask(*commands))

    def checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, exceptions.RedisError):
                raise self.translate(reply) from reply
        return replies

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[Link]:
        link = await self._any_idle() or Link(self.address.connection())
        self._busy.add(link)
        try:
            if not link.is_alive:
                await self._connect(link)
            yield link
        except BaseException:
            await link.drop()
            raise
        else:
            self._idle.append(link)
        finally:
            self._busy.discard(link)

    async def _any_idle(self) -> Link | None:
        if self._closed:
            raise BrokerUnavailable(f"Redis at {self.address}: closed by us")
        while self._idle:
            link = self._idle.pop()
            if link.is_alive:
                return link
            await link.drop()
        return None

    async def _connect(self, link: Link) -> None:
        await link.connect()
        if self._closed:
            raise BrokerUnavailable(f"Redis at {self.address}: closed by us")
        if self._check is not None:
            await self._check(link)

    def translate(self, error: Exception) -> OutriderError:
        return _translate(error, self.address)


def _translate(error: Exception, address: Address) -> OutriderError:
    # The client wraps what TLS or the name of the host led to.
    cause = error.__cause__ or error.__context__
    for_ever = False
    match error:
        case exceptions.AuthenticationError() | exceptions.NoPermissionError():
            for_ever, why = True, str(error)
        case exceptions.AskError() | exceptions.ClusterCrossSlotError():
            for_ever, why = True, "it is a node of a cluster"
        case exceptions.ResponseError():
            why = str(error).partition(", with args")[0]  # behind that stand values of events
            for_ever = _NEVER.search(why) is not None
        case exceptions.ConnectionError() if isinstance(cause, ssl.SSLCertVerificationError):
            for_ever, why = True, f"its certificate is not trusted: {cause.verify_message}"
        case exceptions.ConnectionError() if isinstance(cause, ssl.SSLError):
            cut_off = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            for_ever, why = not cut_off, f"no TLS: {cause.reason}"
        case exceptions.ConnectionError() if isinstance(cause, UnicodeError):
            for_ever, why = True, "the host's name is not valid"
        case TimeoutError() | exceptions.TimeoutError():
            why = "no answer in time"
        case _:
            why = str(error) or type(error).__name__
    kind = ConfigurationError if for_ever else BrokerUnavailable
    translated = kind(f"Redis at {address}: {why}")
    translated.__cause__ = error
    return translated

"""Connections to one Redis server, and what its errors mean; each call has its own connection."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from hiredis import pack_command
from redis import exceptions

from outrider.brokers.network_errors import Diagnosis, network_diagnosis, without_tls
from outrider.brokers.redis.config import Address
from outrider.errors import BrokerUnavailable, OutriderError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Connection

    from outrider.brokers.redis.config import RedisConfig

Command = tuple[str | bytes | int, ...]

_MAX_CONNECTIONS: Final = 8

# Errors that waiting does not cure.
_PERMANENT: Final = re.compile("^WRONGTYPE|^DB index|^unknown (sub)?command|syntax error|exhausted")

# Texts of the server and of the client that hold no value of an event, no password and no user.
_SAFE_TEXT: Final = re.compile(
    r"invalid username-password pair or user is disabled"
    r"|invalid password|Authentication required"
    r"|no permissions to run the '[\w|]+' command"
    r"|no permissions to access (?:a key|one of the keys used as arguments)"
    r"|command not allowed when used memory > 'maxmemory'"
    r"|You can't write against a read only replica"
    r"|is loading the dataset in memory"
    r"|configured to save RDB snapshots, but it's currently unable to persist to disk"
    r"|MISCONF Errors writing to the AOF file"
    r"|NOREPLICAS Not enough good replicas to write"
    r"|Transaction discarded because of previous errors"
    r"|Link with MASTER is down"
    r"|WRONGTYPE Operation against a key holding the wrong kind of value"
    r"|NOGROUP No such (?:key|consumer group)"
    r"|is busy running a script"
    r"|DB index is out of range|no such key|syntax error"
    r"|unknown (?:sub)?command ['`][\w|]+['`]"
    r"|The stream has exhausted the last possible ID"
    r"|max number of clients reached"
    r"|Connection closed by server",
    re.IGNORECASE,
)


def pack(command: Command) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type] # takes any number of them
    return packed


class RedisConnection:
    """One connection, used by one call at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: asyncio.WriteTransport | None = None

    async def connect(self) -> None:
        await self._connection.connect()  # type: ignore[no-untyped-call]
        writer = self._connection._writer  # the client offers no way to abort a transport
        self._transport = writer.transport if writer is not None else None

    @property
    def is_alive(self) -> bool:
        """As far as the event loop has noticed."""
        reader = self._connection._reader  # the client's own check would have to send something
        return reader is not None and not reader.at_eof() and reader.exception() is None

    async def ask(self, *commands: Command) -> list[Any]:
        """Send all commands in one write; an error of the server is returned in its place."""
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
            # `disconnect` alone would first send what is still in the buffer, however long it took.
            self._transport.abort()
        await self._connection.disconnect(nowait=True)


class ConnectionPool:
    """Connects when needed, and keeps a connection for the next call if all its replies came."""

    def __init__(
        self,
        url: str,
        config: RedisConfig,
        check: Callable[[RedisConnection], Awaitable[None]] | None = None,
    ) -> None:
        """`check` is called with every new connection."""
        self.address = Address(url, config)
        self._timeout_s = config.publish_timeout.total_seconds()
        self._check = check
        self._free_slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._idle: list[RedisConnection] = []
        self._busy: set[RedisConnection] = set()
        self._closed = False

    def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        connections, self._idle = [*self._idle, *self._busy], []
        for connection in connections:
            await connection.drop()

    @asynccontextmanager
    async def connection(self, blocking_s: float = 0.0) -> AsyncIterator[RedisConnection]:
        """For the calls of one block, with one deadline; `blocking_s` is added to it for commands
        that wait on the server."""
        try:
            async with (
                asyncio.timeout(self._timeout_s + blocking_s),
                self._free_slots,
                self._taken() as taken,
            ):
                yield taken
        except (exceptions.RedisError, OSError) as error:
            raise translate(error, self.address) from error

    async def ask(self, *commands: Command) -> list[Any]:
        """All replies; raises if one of them is an error."""
        async with self.connection() as connection:
            return self.checked(await connection.ask(*commands))

    def checked(self, replies: list[Any]) -> list[Any]:
        """The replies; raises if one of them is an error."""
        for reply in replies:
            if isinstance(reply, exceptions.RedisError):
                raise translate(reply, self.address) from reply
        return replies

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[RedisConnection]:
        taken = await self._take_idle() or RedisConnection(self.address.new_connection())
        self._busy.add(taken)
        try:
            if not taken.is_alive:
                await self._connect(taken)
            yield taken
        except BaseException:
            await taken.drop()
            raise
        else:
            self._idle.append(taken)
        finally:
            self._busy.discard(taken)

    async def _take_idle(self) -> RedisConnection | None:
        self._refuse_if_closed()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive:
                return connection
            await connection.drop()
        return None

    async def _connect(self, connection: RedisConnection) -> None:
        try:
            await connection.connect()
        except exceptions.TimeoutError as error:
            raise without_tls(TimeoutError(), tls=self.address.has_tls) from error
        self._refuse_if_closed()
        if self._check is not None:
            await self._check(connection)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BrokerUnavailable(f"Redis at {self.address}: closed by us")


def translate(error: Exception, address: object) -> OutriderError:
    diagnosis = network_diagnosis(error)
    if diagnosis is None and isinstance(error, exceptions.ConnectionError):
        # The client wraps errors of network and TLS, with or without `from`.
        diagnosis = network_diagnosis(error.__cause__ or error.__context__)
    return (diagnosis or _diagnosis(error)).error("Redis", address, error)


def _diagnosis(error: Exception) -> Diagnosis:
    match error:
        case exceptions.AuthenticationError() | exceptions.NoPermissionError():
            return Diagnosis(True, _safe_text(error))
        case exceptions.AskError() | exceptions.ClusterCrossSlotError():
            return Diagnosis(True, "it is a node of a cluster")
        case exceptions.ResponseError():
            return Diagnosis(_PERMANENT.search(str(error)) is not None, _safe_text(error))
        case exceptions.TimeoutError():
            return Diagnosis(False, "no answer in time")
        case _:
            return Diagnosis(False, _safe_text(error))


def _safe_text(error: Exception) -> str:
    """What is known to be harmless of the error's text, else the error's class."""
    found = _SAFE_TEXT.search(str(error))
    return found[0] if found else type(error).__name__

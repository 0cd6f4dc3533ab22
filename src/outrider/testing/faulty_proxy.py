"""A TCP proxy whose connections fail on demand, for tests of network faults."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

Way = Literal["server", "client"]

_BOTH: Final[Sequence[Way]] = ("server", "client")
_HERE: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65_536
_TRICKLE_INTERVAL_S: Final = 0.05
# SO_LINGER with a timeout of 0: closing sends RST instead of FIN.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class FaultyProxy(Openable):
    """A TCP proxy in front of one server; it forwards all bytes until a fault is set.

    `async with FaultyProxy("127.0.0.1", 5432) as proxy`, then use `proxy.url(…)` instead of the
    server's own URL. A fault lasts until `heal` or the next fault, for open connections and for
    new ones. `toward="server"` or `toward="client"` limits the fault to that direction.
    """

    def __init__(self, host: str, port: int, *, listen: int = 0) -> None:
        self.port = listen
        """The port on the loopback address; a free one if none was given."""
        self.swallowed = 0
        """How many bytes `black_hole` has dropped."""
        self._host, self._target = host, port
        self._refusing = False
        self._faults: dict[Way, _Fault] = dict.fromkeys(_BOTH, _Fault())
        self._open: dict[asyncio.Task[None] | None, _Connection] = {}

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, _HERE, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._listener.close()
        self.refuse()
        while ending := [task for task in self._open if task]:
            await asyncio.wait(ending)

    def url(self, url: str) -> str:
        """The same URL, but through this proxy."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{_HERE}:{self.port}").geturl()

    @property
    def connections(self) -> int:
        """How many connections are open, on either side."""
        return len(self._open)

    def heal(self) -> None:
        """Forward all bytes again. Reset the connections that lost bytes meanwhile."""
        self._strike(_Fault())

    def black_hole(self, toward: Way | None = None) -> None:
        """Drop all bytes and keep the connections open."""
        self._strike(_BlackHole(self), toward)

    def clog(self, toward: Way | None = None) -> None:
        """Hold all bytes back; they arrive after `heal`."""
        self._strike(_Clog(), toward)

    def delay(self, by: timedelta, toward: Way | None = None) -> None:
        self._strike(_Delay(by.total_seconds()), toward)

    def trickle(self, bytes_per_second: float, toward: Way | None = None) -> None:
        self._strike(_Trickle(bytes_per_second), toward)

    def cut_after(self, count: int, toward: Way | None = None) -> None:
        """Forward this number of bytes, then reset all connections; new ones work."""
        self._strike(_Cut(count, self), toward)

    def reset(self) -> None:
        """Reset all open connections; new ones work."""
        for connection in self._open.values():
            connection.reset()

    def refuse(self) -> None:
        """Reset all connections, and every new one at once, as if no server listened."""
        self._strike(_Fault())
        self._refusing = True
        self.reset()

    def _strike(self, fault: _Fault, toward: Way | None = None) -> None:
        self._refusing = False
        before = set(self._faults.values())
        self._faults.update(dict.fromkeys(_BOTH if toward is None else (toward,), fault))
        for ended in before - set(self._faults.values()):
            ended.end()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, task = _Connection(reader, writer), asyncio.current_task()
        self._open[task] = connection
        try:
            await connection.reach(self._host, self._target)
            if self._refusing:
                connection.reset()
            await asyncio.gather(*(self._carry(connection, way) for way in _BOTH))
        except OSError:
            connection.reset()
        finally:
            connection.close()
            del self._open[task]

    async def _carry(self, connection: _Connection, toward: Way) -> None:
        """Carry the bytes of one direction until they end, as the current fault says."""
        reader, broken = connection.readers[toward], False
        try:
            while data := await reader.read(_CHUNK_BYTES):
                while data:
                    data = await self._faults[toward].carry(data, connection, toward)
        except OSError:
            broken = True
        while not await self._faults[toward].lets_end():
            pass
        if broken:
            connection.reset()
        else:
            connection.end(toward)


class _Connection:
    """A client's connection to the proxy, and the proxy's own one to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.readers: dict[Way, asyncio.StreamReader] = {"server": reader}
        self.writers: dict[Way, asyncio.StreamWriter] = {"client": writer}

    async def reach(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        self.readers["client"], self.writers["server"] = reader, writer

    def end(self, toward: Way) -> None:
        with suppress(OSError):
            if not self.writers[toward].is_closing():
                self.writers[toward].write_eof()

    def reset(self) -> None:
        for writer in self.writers.values():
            if not writer.is_closing():
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class _Fault:
    """What happens to the bytes of a direction; this base class forwards them."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    def end(self) -> None:
        self._ended.set()

    async def carry(self, data: bytes, connection: _Connection, toward: Way, /) -> bytes:
        """Handle these bytes; return those that the next fault has to handle."""
        writer = connection.writers[toward]
        writer.write(data)
        await writer.drain()
        return b""

    async def lets_end(self) -> bool:
        """Whether the end of the stream may be forwarded; if not, wait until the fault ends."""
        return True

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()


class _Clog(_Fault):
    async def carry(self, data: bytes, _connection: _Connection, _toward: Way, /) -> bytes:
        await self._ended.wait()
        return data

    async def lets_end(self) -> bool:
        await self._ended.wait()
        return False


class _BlackHole(_Clog):
    def __init__(self, proxy: FaultyProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._victims: set[_Connection] = set()

    def end(self) -> None:
        super().end()
        for victim in self._victims:
            victim.reset()

    async def carry(self, data: bytes, connection: _Connection, _toward: Way, /) -> bytes:
        self._proxy.swallowed += len(data)
        self._victims.add(connection)
        return b""


class _Delay(_Fault):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def carry(self, data: bytes, connection: _Connection, toward: Way, /) -> bytes:
        await self._wait(self._seconds)
        return await super().carry(data, connection, toward)


class _Trickle(_Fault):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self._piece_bytes = max(1, int(rate * _TRICKLE_INTERVAL_S))
        self._interval_s = self._piece_bytes / rate

    async def carry(self, data: bytes, connection: _Connection, toward: Way, /) -> bytes:
        await super().carry(data[: self._piece_bytes], connection, toward)
        await self._wait(self._interval_s)
        return data[self._piece_bytes :]


class _Cut(_Fault):
    def __init__(self, count: int, proxy: FaultyProxy) -> None:
        super().__init__()
        self._left, self._proxy = count, proxy

    async def carry(self, data: bytes, connection: _Connection, toward: Way, /) -> bytes:
        piece, self._left = data[: self._left], self._left - len(data)
        await super().carry(piece, connection, toward)
        if self._left <= 0:
            connection.reset()
            if not self._ended.is_set():
                self._proxy.heal()
                self._proxy.reset()
        return b""

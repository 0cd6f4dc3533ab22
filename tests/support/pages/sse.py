"""A client of server-sent events that accepts only what the standard allows."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

MAX_WAIT_S = 60.0
_FIELDS = ("id", "event", "data", "retry")


@dataclass
class Message:
    id: int
    type: str
    data: dict[str, Any]

    @property
    def n(self) -> int:
        return int(self.data["data"]["n"])


@dataclass
class Parser:
    """Parses bytes as they arrive, as a browser does."""

    last_event_id: int | None = None
    retry: int | None = None
    comments: int = 0
    messages: list[Message] = field(default_factory=list)
    _rest: bytes = b""
    _block: dict[str, list[str]] = field(default_factory=dict)

    def feed(self, data: bytes) -> None:
        assert b"\r" not in data, "lines end with LF alone"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode())

    @property
    def between_blocks(self) -> bool:
        return not self._rest and not self._block

    def _line(self, line: str) -> None:
        if not line:
            self._dispatch()
        elif line.startswith(":"):
            self.comments += 1
        else:
            name, colon, value = line.partition(": ")
            assert colon, f"a field and a value: {line!r}"
            assert name in _FIELDS, f"a known field: {line!r}"
            assert name == "data" or name not in self._block, f"once: {line!r}"
            self._block.setdefault(name, []).append(value)

    def _dispatch(self) -> None:
        block, self._block = self._block, {}
        if "retry" in block:
            assert re.fullmatch(r"[0-9]+", block["retry"][0])
            self.retry = int(block["retry"][0])
        if "id" in block:
            assert re.fullmatch(r"[0-9]+", block["id"][0])
            self.last_event_id = int(block["id"][0])
        if "data" in block:
            assert self.last_event_id is not None
            data = json.loads("\n".join(block["data"]))
            kind = block.get("event", ["message"])[0]
            self.messages.append(Message(self.last_event_id, kind, data))


class Cut(Exception):
    """The connection ended before the response did."""


class Client:
    """One GET request on its own socket; it reads only when a test asks."""

    def __init__(self, port: int, **parameters: Any) -> None:
        self.port, self.parameters = port, parameters
        self.status, self.headers, self.body = 0, dict[str, str](), b""
        self.parser = Parser()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._taken = 0

    async def open(
        self,
        last_event_id: int | str | None = None,
        headers: dict[str, str] | None = None,
        method: str = "GET",
        receive_buffer: int | None = None,
    ) -> Client:
        await self._connect(receive_buffer)
        assert self._writer is not None
        lines = [f"{method} /events{self._query()} HTTP/1.1", "Host: localhost"]
        if last_event_id is not None:
            lines.append(f"Last-Event-ID: {last_event_id}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(MAX_WAIT_S):
            await self._read_head()
        return self

    async def _connect(self, receive_buffer: int | None) -> None:
        sock = socket.socket()
        try:
            sock.setblocking(False)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
            limit = receive_buffer or 2**16
            self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=limit)
        except BaseException:
            sock.close()
            raise

    def _query(self) -> str:
        pairs = [
            (name.removesuffix("_"), value)
            for name, given in self.parameters.items()
            for value in (given if isinstance(given, list) else [given])
        ]
        return "?" + "&".join(f"{n}={quote(str(v), safe='')}" for n, v in pairs) if pairs else ""

    async def _read_head(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        self.status = int(first.split()[1])
        pairs = (line.partition(": ") for line in lines if line)
        self.headers = {name.lower(): value for name, _, value in pairs}
        if length := self.headers.get("content-length"):
            self.body = await self._reader.readexactly(int(length))

    async def more(self) -> bool:
        """Read the next bytes; return False at the end of the response."""
        try:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            chunk = await self._reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError) as cut:
            raise Cut from cut
        self.parser.feed(chunk[:-2])
        return size > 0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(MAX_WAIT_S):
            while not condition():
                assert await self.more(), "the stream ended"

    async def take(self, count: int) -> list[Message]:
        """The next messages, this number of them."""
        goal = self._taken + count
        await self.until(lambda: len(self.parser.messages) >= goal)
        taken = self.parser.messages[self._taken : goal]
        self._taken = goal
        return taken

    async def ended(self) -> None:
        """Read to the end of the response, which must be complete."""
        async with asyncio.timeout(MAX_WAIT_S):
            while await self.more():
                pass
        assert self.parser.between_blocks

    @property
    def messages(self) -> list[Message]:
        return self.parser.messages

    @property
    def last_event_id(self) -> int | None:
        return self.parser.last_event_id

    def kill(self) -> None:
        """Drop the connection without closing it in an orderly way."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

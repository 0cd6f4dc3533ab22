"""The health port (/livez, /readyz, /metrics) and notifications to systemd."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from outrider.lifecycle import BackgroundService

    RenderMetrics = Callable[[], Awaitable[bytes]]

_REQUEST_TIMEOUT_S: Final = 5.0
_MAX_LINE_BYTES: Final = 8192
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}


class HealthServer:
    """Answers GET /livez, /readyz and, if there are metrics, /metrics."""

    def __init__(
        self, address: str, services: Sequence[BackgroundService], metrics: RenderMetrics | None
    ) -> None:
        host, colon, port = address.rpartition(":")
        if not (colon and port.isdigit()):
            raise ConfigurationError(f"health {address!r}: write it as host:port, or :port")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._services, self._metrics = services, metrics

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Listens until the block ends; gives the port number."""
        try:
            server = await asyncio.start_server(
                self._answer, self._host, self._port, limit=_MAX_LINE_BYTES
            )
        except OSError as error:
            raise ConfigurationError(
                f"health {self._host}:{self._port}: {error.strerror or error}"
            ) from None
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                method, path = (await reader.readline()).decode("latin-1").split()[:2]
                while (await reader.readline()).strip():
                    pass
                code, kind, body = await self._respond(method, path.partition("?")[0])
                writer.write(_head(code, kind, len(body)) + (body if method == "GET" else b""))
                await writer.drain()
        writer.close()

    async def _respond(self, method: str, path: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b""
        if path == "/livez":
            has_failed = any(each.has_failed for each in self._services)
            alive = {"status": "failed" if has_failed else "alive"}
            return 503 if has_failed else 200, "application/json", json.dumps(alive).encode()
        if path == "/readyz":
            problems = [problem for each in self._services if (problem := each.problem)]
            facts = {"status": "not ready" if problems else "ready", "problems": problems}
            return 503 if problems else 200, "application/json", json.dumps(facts).encode()
        if path == "/metrics" and self._metrics is not None:
            return 200, "text/plain; version=0.0.4; charset=utf-8", await self._metrics()
        return 404, "text/plain", b""


def _head(code: int, kind: str, length: int) -> bytes:
    lines = (
        f"HTTP/1.1 {code} {_REASONS[code]}",
        f"Content-Type: {kind}",
        f"Content-Length: {length}",
        "Connection: close",
        "X-Content-Type-Options: nosniff",
    )
    return "\r\n".join((*lines, "", "")).encode()


def notify_systemd(state: str) -> None:
    """Sends READY=1 and the like for units of Type=notify; does nothing without systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), name)

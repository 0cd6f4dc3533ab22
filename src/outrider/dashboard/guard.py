"""Who may do what: one question for every request, and no request that another site sends."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

Authorize = Callable[[Request, str], bool | Awaitable[bool]]
"""Asked with the request and `look`, `payload`, `retry` or `discard`."""

CHANGING: Final = ("retry", "discard")
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PROXIED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_NOT_LOCAL: Final = "No access. Without authorize=… this page answers this machine only.\n"


def is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return False


def only_local(request: Request, _action: str) -> bool:
    """A browser on this machine that asked for this machine, with nobody in between.

    The name matters as well: a foreign name that leads here is another site's trick.
    """
    asked = is_loopback(_split(f"//{request.headers.get('host', '')}").hostname)
    near = request.client is not None and is_loopback(request.client.host)
    return asked and near and not any(name in request.headers for name in _PROXIED)


class Access:
    """The callback, and the read-only mode that stands above it."""

    def __init__(self, authorize: Authorize, *, read_only: bool) -> None:
        self._authorize = authorize
        self._read_only = read_only

    async def may(self, request: Request, action: str) -> bool:
        if self._read_only and action in CHANGING:
            return False
        verdict = self._authorize(request, action)
        return bool(await verdict if inspect.isawaitable(verdict) else verdict)

    @property
    def hint(self) -> str:
        return _NOT_LOCAL if self._authorize is only_local else "No access.\n"


class Guard:
    """Around every route, files included."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        app: ASGIApp = self._app
        if not await self._access.may(request, "look"):
            app = PlainTextResponse(self._access.hint, 403)
        elif request.method not in ("GET", "HEAD") and not same_origin(request):
            app = PlainTextResponse("Another site sent this request.\n", 403)
        await app(scope, receive, _with_headers(send))


def same_origin(request: Request) -> bool:
    """Browsers say where a request comes from; silence is no proof."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin, host = _split(request.headers.get("origin", "")), request.headers.get("host")
    return bool(host) and origin.scheme in ("http", "https") and origin.netloc == host


def _split(url: str) -> SplitResult:
    """A header may hold anything; what is no URL names no place."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return send_with_headers

"""Access control: authorizes every request, and refuses cross-site requests."""

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

AuthorizeAction = Callable[[Request, str], bool | Awaitable[bool]]
"""Called with the request and the action: `look`, `payload`, `retry` or `discard`."""

CHANGING_ACTIONS: Final = ("retry", "discard")
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
_PROXY_HEADERS: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_NOT_LOCAL: Final = "No access. Without authorize=… only this machine may open this page.\n"


def is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return False


def only_local(request: Request, _action: str) -> bool:
    """Allows requests from this machine, without a proxy, to a host name of this machine.

    The Host header is checked against DNS rebinding: another site's name may resolve to 127.0.0.1.
    """
    local_host = is_loopback(_split(f"//{request.headers.get('host', '')}").hostname)
    local_client = request.client is not None and is_loopback(request.client.host)
    return (
        local_host and local_client and not any(name in request.headers for name in _PROXY_HEADERS)
    )


class Access:
    """The `authorize` callback, and the read-only mode, which overrides it."""

    def __init__(self, authorize: AuthorizeAction, *, read_only: bool) -> None:
        self._authorize = authorize
        self._read_only = read_only

    async def allows(self, request: Request, action: str) -> bool:
        if self._read_only and action in CHANGING_ACTIONS:
            return False
        verdict = self._authorize(request, action)
        return bool(await verdict if inspect.isawaitable(verdict) else verdict)

    @property
    def hint(self) -> str:
        return _NOT_LOCAL if self._authorize is only_local else "No access.\n"


class Guard:
    """The middleware around every route, including static files."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        app: ASGIApp = self._app
        if not await self._access.allows(request, "look"):
            app = PlainTextResponse(self._access.hint, 403)
        elif request.method not in ("GET", "HEAD") and not same_origin(request):
            app = PlainTextResponse("Another site sent this request.\n", 403)
        await app(scope, receive, _with_headers(send))


def same_origin(request: Request) -> bool:
    """Whether the browser says that this site sent the request; without any header, False."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin, host = _split(request.headers.get("origin", "")), request.headers.get("host")
    return bool(host) and origin.scheme in ("http", "https") and origin.netloc == host


def _split(url: str) -> SplitResult:
    """Parse an untrusted header; an empty result if it is not a URL."""
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

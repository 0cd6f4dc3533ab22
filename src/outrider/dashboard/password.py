"""HTTP basic authentication with one password, for a dashboard that is served alone."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from outrider.dashboard.app import USER_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_WRONG_PASSWORD_DELAY_S: Final = 0.5
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="outrider", charset="UTF-8"'}


class PasswordGate:
    """Accepts any name with the right password; the audit log keeps the name."""

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app = app
        self._password = password.encode()
        self._wrong_password_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        credentials = _credentials(Request(scope).headers.get("authorization", ""))
        if credentials is not None and hmac.compare_digest(credentials[1], self._password):
            await self._app({**scope, USER_KEY: credentials[0]}, receive, send)
            return
        if credentials is not None:
            # Rate limit: the lock delays parallel guesses one after the other.
            async with self._wrong_password_lock:
                await asyncio.sleep(_WRONG_PASSWORD_DELAY_S)
        await PlainTextResponse("A password is needed.\n", 401, _CHALLENGE)(scope, receive, send)


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(value, validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None

"""HTTP basic authentication with one password, for a page that stands alone."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from outrider.dashboard.app import WHO

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_PENALTY: Final = 0.5
_ASK: Final = {"WWW-Authenticate": 'Basic realm="outrider", charset="UTF-8"'}


class PasswordGate:
    """Any name with the right password; the name is kept with what the person does."""

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app = app
        self._password = password.encode()
        self._one_wrong_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = _given(Request(scope).headers.get("authorization", ""))
        if given is not None and hmac.compare_digest(given[1], self._password):
            await self._app({**scope, WHO: given[0]}, receive, send)
            return
        if given is not None:
            # Guessing is slow however many try at once.
            async with self._one_wrong_at_a_time:
                await asyncio.sleep(_PENALTY)
        await PlainTextResponse("A password is needed.\n", 401, _ASK)(scope, receive, send)


def _given(header: str) -> tuple[str, bytes] | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(value, validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None

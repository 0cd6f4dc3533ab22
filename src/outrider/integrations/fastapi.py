"""FastAPI: life cycle, event bus per request, request ids in events, health endpoints."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

try:
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing.name}: pip install 'outrider[fastapi]'") from None

from outrider.events.bus import EventBus
from outrider.events.context import current_metadata, event_context
from outrider.events.envelope import EventMetadata

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from outrider.lifecycle import BackgroundService

RequestEvents = Annotated[EventBus, Depends(EventBus)]
"""The event bus of this request; flush it before the commit."""


async def _metadata() -> EventMetadata:
    return current_metadata()


RequestMetadata = Annotated[EventMetadata, Depends(_metadata)]
"""The metadata of this request's events, such as its id; set by EventContextMiddleware."""

UserOf = Callable[["Scope"], str | None]
_MAX_HEADER_CHARS = 128
_Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def outrider_lifespan(*parts: BackgroundService, within: _Lifespan | None = None) -> _Lifespan:
    """Start relays, consumers and streams with the application, and stop them before it stops.

    They stop in reverse order. `within` is the application's own lifespan: it starts first and
    ends last, so that it can close what the parts need.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[object]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(within(app)) if within else None
            for part in parts:
                await stack.enter_async_context(part)
            yield state

    return lifespan


class EventContextMiddleware:
    """Adds the request's id, trace and user to every event that it records.

    The correlation id is the header X-Request-ID, or a new id; the response has the same header.
    """

    def __init__(self, app: ASGIApp, user_of: UserOf | None = None) -> None:
        self._app, self._user_of = app, user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _usable(headers.get(b"x-request-id")) or str(uuid4())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode()))
            await send(message)

        with event_context(
            correlation_id=request_id,
            traceparent=_usable(headers.get(b"traceparent")),
            tracestate=_usable(headers.get(b"tracestate")),
            user_id=self._user_of(scope) if self._user_of else None,
        ):
            await self._app(scope, receive, send_with_id)


async def validation_error_handler(_: Request, error: Exception) -> Response:
    """For `app.add_exception_handler(RequestValidationError, …)`.

    Responds as FastAPI does, but without the input, which may be private.
    """
    if not isinstance(error, RequestValidationError):
        raise error
    names = ("loc", "msg", "type")
    detail = [{name: problem[name] for name in names} for problem in error.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


def health_router(parts: Sequence[BackgroundService]) -> APIRouter:
    """GET /livez, for restarts, and GET /readyz, for traffic.

    /livez is 503 when a part has ended by itself. /readyz lists the problems of all parts; it
    stays 200 while only a broker is away, since the application records events meanwhile.
    """
    router = APIRouter(tags=["health"])

    @router.get("/livez", responses={503: {"description": "To be restarted"}})
    async def livez(response: Response) -> dict[str, str]:
        has_failed = any(part.has_failed for part in parts)
        response.status_code = 503 if has_failed else 200
        return {"status": "failed" if has_failed else "alive"}

    @router.get("/readyz", responses={503: {"description": "Not ready"}})
    async def readyz(response: Response) -> dict[str, str | list[str]]:
        problems = [problem for part in parts if (problem := part.problem)]
        is_ready = not any(part.problem_besides_broker for part in parts)
        response.status_code = 200 if is_ready else 503
        return {"status": "ready" if is_ready else "not ready", "problems": problems}

    return router


def _usable(value: str | None) -> str | None:
    """Untrusted headers end up in rows and logs, so they must be short and printable."""
    is_usable = value and len(value) <= _MAX_HEADER_CHARS and value.isprintable()
    return value if is_usable else None

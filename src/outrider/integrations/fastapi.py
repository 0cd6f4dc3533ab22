"""FastAPI: life cycle, a bus per request, ids of the request on its events, health."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
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
    from starlette.types import ASGIApp, Receive, Scope, Send

    from outrider.lifecycle import BackgroundService

RequestEvents = Annotated[EventBus, Depends(EventBus)]
"""What this request raises; flush it before the commit."""


async def _metadata() -> EventMetadata:
    return current_metadata()


RequestMetadata = Annotated[EventMetadata, Depends(_metadata)]
"""What this request's events carry, such as its id; EventContextMiddleware fills it in."""

UserOf = Callable[["Scope"], str | None]
_MOST_ID = 128


def outrider_lifespan(
    *parts: BackgroundService, within: Callable[[FastAPI], Any] | None = None
) -> Callable[[FastAPI], Any]:
    """Starts relays, consumers and streams with the application, and stops them before it.

    The last one started is the first to stop; all of them stop before `within`, a lifespan of
    the application's own, closes what they need.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(within(app)) if within else None
            for part in parts:
                await stack.enter_async_context(part)
            yield state

    return lifespan


class EventContextMiddleware:
    """Every event that a request records carries its id, its trace and its user.

    The correlation id is that of the header X-Request-ID, or a new one; the answer repeats it.
    """

    def __init__(self, app: ASGIApp, user_of: UserOf | None = None) -> None:
        self._app, self._user_of = app, user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _usable(headers.get(b"x-request-id")) or str(uuid4())

        async def send_with_id(message: Any) -> None:
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


async def say_what_is_wrong(_: Request, problem: Exception) -> Response:
    """For `app.add_exception_handler(RequestValidationError, …)`: the answer that FastAPI gives,
    without the input, which may be private and not even be JSON again."""
    if not isinstance(problem, RequestValidationError):
        raise problem
    told = ("loc", "msg", "type")
    detail = [{name: error[name] for name in told} for error in problem.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


def health_router(parts: Sequence[BackgroundService]) -> APIRouter:
    """GET /livez, which depends on nothing, and /readyz, which says what is not well."""
    router = APIRouter(tags=["health"])

    @router.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/readyz", responses={503: {"description": "Not ready"}})
    async def readyz(response: Response) -> dict[str, Any]:
        problems = [problem for part in parts if (problem := part.problem)]
        response.status_code = 503 if problems else 200
        return {"status": "not ready" if problems else "ready", "problems": problems}

    return router


def _usable(value: str | None) -> str | None:
    """A stranger's header becomes a part of rows and logs, so it must be short and printable."""
    fine = value and len(value) <= _MOST_ID and value.isprintable()
    return value if fine else None

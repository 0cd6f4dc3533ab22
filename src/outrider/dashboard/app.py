"""The dashboard as an ASGI application, to mount under any path or to serve alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

try:
    import jinja2  # noqa: F401 - imported here to show the hint early
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as missing:
    hint = f"{missing.name}: pip install 'outrider[dashboard]'"
    raise ModuleNotFoundError(hint, name=missing.name) from None

from outrider.dashboard.actions import Actions
from outrider.dashboard.guard import Access, AuthorizeAction, Guard, only_local
from outrider.dashboard.redaction import REDACTED, Redaction
from outrider.dashboard.responses import Responder, ScreenResult
from outrider.dashboard.screens import Screens
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.requests import Request
    from starlette.responses import Response

    Screen = Callable[[Request], Awaitable[ScreenResult]]

USER_KEY: Final = "outrider.user"
"""The key of the user's name in the scope of a request."""
_STATIC: Final = Path(__file__).parent / "static"


def user_of(request: Request) -> str:
    """The user from PasswordGate or from an authentication middleware of Starlette."""
    user = request.scope.get("user")
    return str(request.scope.get(USER_KEY) or getattr(user, "display_name", "") or "page")


def dashboard(
    engine: AsyncEngine,
    *,
    tables: OutboxTables | None = None,
    authorize: AuthorizeAction | None = None,
    read_only: bool = False,
    show_payload: bool = False,
    redact: Sequence[str] = REDACTED,
    who: Callable[[Request], str] = user_of,
) -> Starlette:
    """`app.mount("/outbox", dashboard(engine, authorize=…))`.

    `authorize(request, action)` is called on every request with the action `look`, and also before
    `payload`, `retry` and `discard`. Without it, only requests from this machine are allowed.
    Payloads are hidden unless `show_payload` is set; the fields named in `redact` are hidden
    always. `who` returns the name of the person for the audit log.
    """
    tables = tables or OutboxTables()
    access = Access(authorize or only_local, read_only=read_only)
    responder = Responder(access, tables.names)
    screens = Screens(engine, tables, access, Redaction(tuple(redact), show=show_payload))
    actions = Actions(engine, tables, access, who)
    routes = [
        *_routes(responder, "/", screens.overview),
        *_routes(responder, "/events", screens.events),
        *_routes(responder, "/events/{event_id:uuid}", screens.event),
        *_routes(responder, "/events/{event_id:uuid}/caused", screens.caused),
        *_routes(responder, "/failures", screens.failures),
        *_routes(responder, "/relays", screens.relays),
        *_routes(responder, "/inbox", screens.inbox),
        *_routes(responder, "/audit", screens.audit),
        *_routes(responder, "/actions/{verb}", actions.confirm),
        *_routes(responder, "/actions/{verb}", actions.execute, method="POST"),
        Route("/api/samples", responder.respond_with(screens.samples, as_json=True)),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        # Not called for a mounted application; there the sampler stops when nobody asks it.
        yield
        await screens.sampler.stop()

    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={404: responder.not_found},
    )


def _routes(responder: Responder, path: str, screen: Screen, method: str = "GET") -> list[Route]:
    """The HTML route of a screen, and the JSON route of the same data."""
    html: Callable[[Request], Awaitable[Response]] = responder.respond_with(screen)
    api = responder.respond_with(screen, as_json=True)
    return [
        Route(path, html, methods=[method]),
        Route("/api" + path.rstrip("/"), api, methods=[method]),
    ]

"""The page as an ASGI application, to be mounted under any path or served alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

try:
    import jinja2  # noqa: F401 - asked for here, so that the hint comes early
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing.name}: pip install 'outrider[dashboard]'") from None

from outrider.dashboard.actions import Actions
from outrider.dashboard.guard import Access, Authorize, Guard, only_local
from outrider.dashboard.redaction import REDACTED, Mask
from outrider.dashboard.responses import Answer, Answers
from outrider.dashboard.screens import Screens
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.requests import Request
    from starlette.responses import Response

    Screen = Callable[[Request], Awaitable[Answer]]

WHO: Final = "outrider.who"
"""Where a scope may say who is there."""
_STATIC: Final = Path(__file__).parent / "static"


def named_in_scope(request: Request) -> str:
    """The user that an authentication middleware has found, or a password gate of ours."""
    user = request.scope.get("user")
    return str(request.scope.get(WHO) or getattr(user, "display_name", "") or "page")


def dashboard(
    engine: AsyncEngine,
    *,
    tables: OutboxTables | None = None,
    authorize: Authorize | None = None,
    read_only: bool = False,
    show_payload: bool = False,
    redact: Sequence[str] = REDACTED,
    who: Callable[[Request], str] = named_in_scope,
) -> Starlette:
    """`app.mount("/outbox", dashboard(engine, authorize=…))`.

    `authorize(request, action)` is asked on every request, with the action `look`, and before
    `payload`, `retry` and `discard`; without it only this very machine is let in. Payloads are
    hidden unless `show_payload`, and even then the fields named in `redact` are. `who` names the
    person for the audit.
    """
    tables = tables or OutboxTables()
    access = Access(authorize or only_local, read_only=read_only)
    answers = Answers(access)
    screens = Screens(engine, tables, access, Mask(tuple(redact), show=show_payload))
    actions = Actions(engine, tables, access, who)
    routes = [
        *_both(answers, "/", screens.overview),
        *_both(answers, "/events", screens.events),
        *_both(answers, "/events/{event_id:uuid}", screens.event),
        *_both(answers, "/events/{event_id:uuid}/caused", screens.caused),
        *_both(answers, "/failures", screens.failures),
        *_both(answers, "/relays", screens.relays),
        *_both(answers, "/inbox", screens.inbox),
        *_both(answers, "/audit", screens.audit),
        *_both(answers, "/actions/{verb}", actions.confirm),
        *_both(answers, "/actions/{verb}", actions.do, method="POST"),
        Route("/api/samples", answers.to(screens.samples, as_json=True)),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        # Mounted, nobody calls this; the sampler then ends soon after the last look.
        yield
        await screens.sampler.stop()

    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={404: answers.not_found},
    )


def _both(answers: Answers, path: str, screen: Screen, method: str = "GET") -> list[Route]:
    """A screen for people, and the same facts for programs."""
    html: Callable[[Request], Awaitable[Response]] = answers.to(screen)
    api = answers.to(screen, as_json=True)
    return [
        Route(path, html, methods=[method]),
        Route("/api" + path.rstrip("/"), api, methods=[method]),
    ]

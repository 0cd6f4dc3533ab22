"""Responses: renders the data of a screen as HTML or JSON, and errors likewise."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from outrider.admin.filters import STATUSES
from outrider.admin.repair import CountChanged
from outrider.dashboard.guard import CHANGING_ACTIONS, Access
from outrider.dashboard.redaction import exact, pretty
from outrider.errors import ConfigurationError
from outrider.store.schema.problems import is_missing_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from outrider.events.strict_json import JsonObject
    from outrider.store.schema.names import OutboxNames

_SCREEN_TIMEOUT_S: Final = 20
"""Longer than the statement timeout of the inspector, since a screen makes several queries."""
_TITLES: Final = {400: "Bad request", 403: "No access", 404: "Not found", 409: "Changed"}


@dataclass(frozen=True, kw_only=True)
class ScreenResult:
    """The data of a screen, and the template that shows it."""

    template: str
    data: JsonObject = field(default_factory=dict)
    redirect_to: str | None = None
    """The screen to show after a change."""


class HttpError(Exception):
    """A response with this status and a text for the person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Responder:
    """Turns the functions of screens into endpoints."""

    def __init__(self, access: Access, names: OutboxNames) -> None:
        self._access, self._names = access, names
        self._templates = Environment(
            loader=PackageLoader("outrider.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(moment=moment, age=age, number=number, pretty=pretty)
        self._templates.globals["statuses"] = STATUSES

    def respond_with(
        self, screen: Callable[[Request], Awaitable[ScreenResult]], *, as_json: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            json_wanted = as_json or _wants_json(request)
            try:
                # An action has no timeout: it runs in small steps, each in its own transaction.
                timeout = None if request.method == "POST" else _SCREEN_TIMEOUT_S
                async with asyncio.timeout(timeout):
                    result = await screen(request)
            except (HttpError, ConfigurationError, SQLAlchemyError, TimeoutError, OSError) as error:
                status, text = _status_of(error, self._names)
                return await self._error(request, status, text, as_json=json_wanted)
            if json_wanted:
                return JSONResponse(to_json(result.data))
            if result.redirect_to is not None:
                return RedirectResponse(_base(request) + result.redirect_to, status_code=303)
            return await self._html(request, result.template, result.data)

        return respond

    async def not_found(self, request: Request, _error: Exception) -> Response:
        return await self._error(
            request, 404, "There is no such page.", as_json=_wants_json(request)
        )

    async def _error(self, request: Request, status: int, text: str, *, as_json: bool) -> Response:
        if as_json:
            return JSONResponse({"problem": text}, status)
        data = {"title": _TITLES.get(status, "Unavailable"), "text": text}
        return await self._html(request, "problem.html", data, status)

    async def _html(
        self, request: Request, template: str, data: JsonObject, status: int = 200
    ) -> Response:
        html = self._templates.get_template(template).render(
            data,
            base=_base(request),
            screen=template.removesuffix(".html"),
            may={a: await self._access.allows(request, a) for a in CHANGING_ACTIONS},
        )
        return HTMLResponse(html, status)


def _status_of(error: Exception, names: OutboxNames) -> tuple[int, str]:
    match error:
        case HttpError():
            return error.status, str(error)
        case CountChanged():
            return 409, f"Nothing was changed: {error}."
        case ConfigurationError():
            return 400, str(error)
        case TimeoutError():
            return 503, "The search takes too long; use a narrower filter."
        case SQLAlchemyError() if is_missing_table(error):
            return 503, f"The tables of the outbox are missing; {names.cure()}."
        case _:
            # Without the text of the driver, which may quote values.
            return 503, f"The database did not answer ({type(error).__name__})."


def _base(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def to_json(value: object) -> object:
    """The value as JSON types; large integers as text, since a browser would round them."""
    return exact(json.loads(json.dumps(value, default=_to_json_type)))


def _to_json_type(value: object) -> str | float | JsonObject:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
    raise TypeError(type(value).__name__)


def moment(value: datetime | None) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if value else "-"


def age(value: timedelta | None) -> str:
    if value is None:
        return "-"
    seconds = value.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"

"""From a screen's facts to an answer: HTML for people, JSON for programs, problems for both."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from outrider.admin.filters import STATUSES
from outrider.admin.repair import CountChanged
from outrider.dashboard.guard import CHANGING, Access
from outrider.dashboard.redaction import exact, pretty
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

_PATIENCE: Final = 20
"""Seconds until a screen gives up; the database stops a question after five."""
_TITLES: Final = {400: "Not understood", 403: "No access", 404: "Not found", 409: "Look again"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    template: str
    facts: dict[str, Any] = field(default_factory=dict)
    goto: str | None = None
    """Where a browser is sent after a change."""


class Problem(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Answers:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._templates = Environment(
            loader=PackageLoader("outrider.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(moment=moment, age=age, number=number, pretty=pretty)
        self._templates.globals["statuses"] = STATUSES

    def to(
        self, screen: Callable[[Request], Awaitable[Answer]], *, as_json: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            json_wanted = as_json or _wants_json(request)
            try:
                # An action goes on to its end: it works in small steps, each one whole.
                patience = None if request.method == "POST" else _PATIENCE
                async with asyncio.timeout(patience):
                    answer = await screen(request)
            except (Problem, ConfigurationError, SQLAlchemyError, TimeoutError, OSError) as error:
                return await self._problem(request, *_status_of(error), as_json=json_wanted)
            if json_wanted:
                return JSONResponse(plain(answer.facts))
            if answer.goto is not None:
                return RedirectResponse(_base(request) + answer.goto, status_code=303)
            return await self._html(request, answer.template, answer.facts)

        return respond

    async def not_found(self, request: Request, _error: Exception) -> Response:
        return await self._problem(
            request, 404, "There is no such page.", as_json=_wants_json(request)
        )

    async def _problem(
        self, request: Request, status: int, text: str, *, as_json: bool
    ) -> Response:
        if as_json:
            return JSONResponse({"problem": text}, status)
        facts = {"title": _TITLES.get(status, "No answer"), "text": text}
        return await self._html(request, "problem.html", facts, status)

    async def _html(
        self, request: Request, template: str, facts: dict[str, Any], status: int = 200
    ) -> Response:
        shown = self._templates.get_template(template).render(
            facts,
            base=_base(request),
            screen=template.removesuffix(".html"),
            may={action: await self._access.may(request, action) for action in CHANGING},
        )
        return HTMLResponse(shown, status)


def _status_of(error: Exception) -> tuple[int, str]:
    match error:
        case Problem():
            return error.status, str(error)
        case CountChanged():
            return 409, f"Nothing was changed: {error}."
        case ConfigurationError():
            return 400, str(error)
        case TimeoutError():
            return 503, "This takes too long; narrow the filter."
        case _:
            # What the driver says may hold values.
            return 503, f"The database gave no answer ({type(error).__name__})."


def _base(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def plain(value: Any) -> Any:
    """As JSON has it, with integers that survive a browser."""
    return exact(json.loads(json.dumps(value, default=_plain)))


def _plain(value: object) -> Any:
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

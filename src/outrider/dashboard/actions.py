"""Retry and discard by filter: asks for confirmation with the number of events first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from outrider.admin.filters import EventFilter
from outrider.admin.repair import OutboxRepair, statuses_of
from outrider.dashboard.guard import CHANGING_ACTIONS
from outrider.dashboard.responses import HttpError, ScreenResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.requests import Request

    from outrider.dashboard.guard import Access
    from outrider.store.schema.tables import OutboxTables

_MAX_FORM_BYTES: Final = 64 * 1024
_MAX_NAME_CHARS: Final = 200


class Actions:
    def __init__(
        self,
        engine: AsyncEngine,
        tables: OutboxTables,
        access: Access,
        who: Callable[[Request], str],
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._access = access
        self._who = who

    async def confirm(self, request: Request) -> ScreenResult:
        verb = await self._verb(request)
        wanted = EventFilter.parse(request.query_params)
        repair = self._repair(request)
        events = await repair.count(verb, wanted)
        data = {
            "action": verb,
            "filter": wanted.texts(),
            "events": events,
            "takes": " and ".join(statuses_of(verb, wanted)),
            "why": None if events else await repair.why_none(verb, wanted),
        }
        return ScreenResult(template="action.html", data=data)

    async def execute(self, request: Request) -> ScreenResult:
        verb = await self._verb(request)
        form = await _form(request)
        wanted = EventFilter.parse(form)
        expected = form.get("expected", "")
        if not (expected.isascii() and expected.isdigit() and len(expected) < 19):
            raise HttpError(400, "expected: give the number of events to change.")
        changed = await getattr(self._repair(request), verb)(wanted, expected=int(expected))
        return ScreenResult(template="", data={verb: changed}, redirect_to="/audit")

    async def _verb(self, request: Request) -> str:
        verb = str(request.path_params["verb"])
        if verb not in CHANGING_ACTIONS:
            raise HttpError(404, "There is no such action.")
        if not await self._access.allows(request, verb):
            raise HttpError(403, "You are not allowed to do this.")
        return verb

    def _repair(self, request: Request) -> OutboxRepair:
        name = "".join(c for c in self._who(request) if c.isprintable())[:_MAX_NAME_CHARS]
        return OutboxRepair(self._engine, self._tables, who=name)


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise HttpError(413, "The form is too large.")
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=50))
    except ValueError:
        raise HttpError(400, "The request body is not a form.") from None

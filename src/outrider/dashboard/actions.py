"""Retry and discard by filter: the impact is named first, and exactly that is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from outrider.admin.filters import EventFilter
from outrider.admin.repair import OutboxRepair
from outrider.dashboard.guard import CHANGING
from outrider.dashboard.responses import Answer, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.requests import Request

    from outrider.dashboard.guard import Access
    from outrider.store.schema.tables import OutboxTables

_LONGEST: Final = 64 * 1024
_NAME: Final = 200


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

    async def confirm(self, request: Request) -> Answer:
        verb = await self._verb(request)
        wanted = EventFilter.parse(request.query_params)
        events = await self._repair(request).count(verb, wanted)
        facts = {"action": verb, "filter": wanted.texts(), "events": events}
        return Answer(template="action.html", facts=facts)

    async def do(self, request: Request) -> Answer:
        verb = await self._verb(request)
        form = await _form(request)
        wanted = EventFilter.parse(form)
        expected = form.get("expected", "")
        if not (expected.isascii() and expected.isdigit() and len(expected) < 19):
            raise Problem(400, "expected: say how many events you mean.")
        changed = await getattr(self._repair(request), verb)(wanted, expected=int(expected))
        return Answer(template="", facts={verb: changed}, goto="/audit")

    async def _verb(self, request: Request) -> str:
        verb = str(request.path_params["verb"])
        if verb not in CHANGING:
            raise Problem(404, "There is no such action.")
        if not await self._access.may(request, verb):
            raise Problem(403, "This is not allowed here.")
        return verb

    def _repair(self, request: Request) -> OutboxRepair:
        name = "".join(c for c in self._who(request) if c.isprintable())[:_NAME]
        return OutboxRepair(self._engine, self._tables, who=name)


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            raise Problem(413, "This is too much.")
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=50))
    except ValueError:
        raise Problem(400, "A form is wanted.") from None

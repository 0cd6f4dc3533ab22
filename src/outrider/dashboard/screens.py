"""What each screen tells: facts from the inspector, for HTML and JSON alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from outrider.admin.filters import EventFilter
from outrider.admin.inspector import MAX_PAGE, OutboxInspector
from outrider.dashboard.responses import Answer, Problem
from outrider.dashboard.samples import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.requests import Request

    from outrider.admin.summaries import EventSummary, FailureGroup
    from outrider.dashboard.guard import Access
    from outrider.dashboard.redaction import Mask
    from outrider.store.schema.tables import OutboxTables

_DEEPEST: Final = 8
_ENDS: Final = {"published": "delivered", "discarded": "discarded", "failed": "failed"}


class Screens:
    def __init__(
        self, engine: AsyncEngine, tables: OutboxTables, access: Access, mask: Mask
    ) -> None:
        self._inspector = OutboxInspector(engine, tables)
        self._access = access
        self._mask = mask
        self.sampler = Sampler(self._inspector.sinks)

    async def overview(self, _request: Request) -> Answer:
        sinks = await self._inspector.sinks()
        relays = await self._inspector.relays()
        facts = [
            {
                "summary": state,
                "time_to_empty": state.time_to_empty,
                "relays": sum(r.alive for r in relays if r.sink == state.sink),
            }
            for state in sinks
        ]
        return Answer(template="overview.html", facts={"sinks": facts})

    async def samples(self, _request: Request) -> Answer:
        return Answer(template="", facts=self.sampler.facts())

    async def events(self, request: Request) -> Answer:
        wanted = EventFilter.parse(request.query_params)
        before = _number(request, "before", most=2**63 - 1)
        limit = _number(request, "limit", most=MAX_PAGE) or 50
        page = await self._inspector.events(wanted, before=before, limit=limit)
        sinks = await self._inspector.sink_names()
        facts = {"filter": wanted.texts(), "events": page.events, "older": page.older}
        return Answer(template="events.html", facts={**facts, "before": before, "sinks": sinks})

    async def event(self, request: Request) -> Answer:
        lines = await self._lines(request)
        event_id, first = lines[0].event_id, lines[0]
        readable = self._mask.show and await self._access.may(request, "payload")
        # What may not be shown is not even read.
        payload = await self._inspector.payload(event_id) if readable else None
        metadata = await self._inspector.metadata(event_id) or {}
        facts = {
            "event": lines,
            "timeline": _timeline(lines, await self._inspector.handled_by(event_id)),
            "metadata": self._mask.metadata(metadata, readable=readable),
            "payload": self._mask.payload(payload),
            "payload_hidden": not readable,
            "neighbours": await self._inspector.neighbours(first),
        }
        return Answer(template="event.html", facts=facts)

    async def caused(self, request: Request) -> Answer:
        """The chain that led to the event, and the tree that grew from it."""
        lines = await self._lines(request)
        facts = {"causes": await self._causes(lines[0]), "caused": await self._tree(lines)}
        return Answer(template="caused.html", facts=facts)

    async def failures(self, _request: Request) -> Answer:
        groups = [
            {"group": group, "filter": _filter_of(group).texts()}
            for group in await self._inspector.failures()
        ]
        return Answer(template="failures.html", facts={"failures": groups})

    async def relays(self, _request: Request) -> Answer:
        facts = {
            "relays": await self._inspector.relays(),
            "lanes": await self._inspector.lanes(),
            "blocked": await self._inspector.blocked(),
        }
        return Answer(template="relays.html", facts=facts)

    async def inbox(self, _request: Request) -> Answer:
        handled = await self._inspector.handled()
        handlers = [{"handler": name, "events": n, "last": last} for name, n, last in handled]
        return Answer(template="inbox.html", facts={"handlers": handlers})

    async def audit(self, _request: Request) -> Answer:
        rows = [dict(row._mapping) for row in await self._inspector.actions(limit=MAX_PAGE)]
        return Answer(template="audit.html", facts={"actions": rows})

    async def _lines(self, request: Request) -> list[EventSummary]:
        lines = await self._inspector.event(request.path_params["event_id"])
        if not lines:
            raise Problem(404, "There is no such event; it may be forgotten by now.")
        return lines

    async def _causes(self, line: EventSummary) -> list[EventSummary]:
        found: list[EventSummary] = []
        while line.causation_id and len(found) < _DEEPEST:
            try:
                cause = await self._inspector.event(UUID(line.causation_id))
            except ValueError:
                break
            if not cause:
                break
            line = cause[0]
            found.insert(0, line)
        return found

    async def _tree(self, lines: Sequence[EventSummary]) -> list[dict[str, Any]]:
        """Level by level; an event of several sinks is one branch."""
        roots: list[dict[str, Any]] = []
        branches: dict[str, list[dict[str, Any]]] = {str(lines[0].event_id): roots}
        for _ in range(_DEEPEST):
            lines = [
                line
                for line in await self._inspector.caused_by(lines)
                if str(line.event_id) not in branches
            ]
            for line in lines:
                if str(line.event_id) not in branches:
                    branches[str(line.event_id)] = []
                    node = {"event": line, "caused": branches[str(line.event_id)]}
                    branches[str(line.causation_id)].append(node)
            if not lines or len(branches) > MAX_PAGE:
                break
        return roots


def _filter_of(group: FailureGroup) -> EventFilter:
    # A stranger's type with a star in it would be taken for a pattern.
    kind = None if "*" in group.event_type else group.event_type
    return EventFilter(status="failed", sink=group.sink, event_type=kind, error=group.error)


def _number(request: Request, name: str, most: int) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise Problem(400, f"{name}: a number up to {most} is wanted.")
    return int(text)


def _timeline(lines: Sequence[EventSummary], handled: Sequence[tuple[str, Any]]) -> list[Any]:
    """What is known to have happened, in its order, and then what is to come."""
    first = lines[0]
    story: list[dict[str, Any]] = [
        {"at": first.occurred_at, "what": "happened", "note": ""},
        {"at": first.created_at, "what": "recorded", "note": f"position {first.position}"},
    ]
    for line in lines:
        if line.retry_count or line.last_error or line.crash_count:
            note = f"{line.sink}: {line.retry_count} attempts used, {line.crash_count} crashes"
            story.append({"at": None, "what": "refused", "note": note, "error": line.last_error})
        if line.status in _ENDS:
            note = (
                line.sink
                if line.delivery_number is None
                else f"{line.sink}, delivery {line.delivery_number}"
            )
            story.append({"at": line.published_at, "what": _ENDS[line.status], "note": note})
        if line.next_retry_at is not None:
            story.append({"at": line.next_retry_at, "what": "next attempt", "note": line.sink})
    return story + [{"at": at, "what": "handled", "note": name} for name, at in handled]

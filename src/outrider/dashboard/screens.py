"""The data of each screen, read from the inspector, for HTML and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from outrider.admin.filters import EventFilter
from outrider.admin.inspector import MAX_PAGE, OutboxInspector
from outrider.dashboard.responses import HttpError, ScreenResult
from outrider.dashboard.samples import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.requests import Request

    from outrider.admin.summaries import EventSummary, FailureGroup, RefusedAttempt
    from outrider.dashboard.guard import Access
    from outrider.dashboard.redaction import Redaction
    from outrider.events.strict_json import JsonObject
    from outrider.store.schema.tables import OutboxTables

_MAX_DEPTH: Final = 8
_FINAL_STATUSES: Final = ("published", "discarded", "failed")


class Screens:
    """One method per screen."""

    def __init__(
        self, engine: AsyncEngine, tables: OutboxTables, access: Access, redaction: Redaction
    ) -> None:
        self._inspector = OutboxInspector(engine, tables)
        self._access = access
        self._redaction = redaction
        self.sampler = Sampler(self._inspector.sinks)

    async def overview(self, _request: Request) -> ScreenResult:
        sinks = await self._inspector.sinks()
        relays = await self._inspector.relays()
        data = [
            {
                "summary": sink,
                "time_to_empty": sink.time_to_empty,
                "relays": sum(r.alive for r in relays if r.sink == sink.sink),
            }
            for sink in sinks
        ]
        return ScreenResult(template="overview.html", data={"sinks": data})

    async def samples(self, _request: Request) -> ScreenResult:
        return ScreenResult(template="", data=dict(self.sampler.series()))

    async def events(self, request: Request) -> ScreenResult:
        wanted = EventFilter.parse(request.query_params)
        before = _number(request, "before", maximum=2**63 - 1)
        limit = _number(request, "limit", maximum=MAX_PAGE) or 50
        page = await self._inspector.events(wanted, before=before, limit=limit)
        sinks = await self._inspector.sink_names()
        data = {"filter": wanted.texts(), "events": page.events, "older": page.older}
        return ScreenResult(template="events.html", data={**data, "before": before, "sinks": sinks})

    async def event(self, request: Request) -> ScreenResult:
        events = await self._at_sinks(request)
        event_id, first = events[0].event_id, events[0]
        readable = self._redaction.show and await self._access.allows(request, "payload")
        # A payload that may not be shown is not read from the database.
        payload = await self._inspector.payload(event_id) if readable else None
        metadata = await self._inspector.metadata(event_id) or {}
        attempts = await self._inspector.attempts(event_id)
        handled = await self._inspector.handled_by(event_id)
        data = {
            "event": events,
            "attempts": attempts,
            "timeline": _timeline(events, attempts, handled),
            "metadata": self._redaction.metadata(metadata, readable=readable),
            "payload": self._redaction.payload(payload),
            "payload_hidden": not readable,
            "neighbours": await self._inspector.neighbours(first),
        }
        return ScreenResult(template="event.html", data=data)

    async def caused(self, request: Request) -> ScreenResult:
        """The chain of events that caused this one, and the tree of events that it caused."""
        events = await self._at_sinks(request)
        data = {"causes": await self._causes(events[0]), "caused": await self._tree(events)}
        return ScreenResult(template="caused.html", data=data)

    async def failures(self, _request: Request) -> ScreenResult:
        groups = [
            {"group": group, "filter": _filter_of(group).texts()}
            for group in await self._inspector.failures()
        ]
        return ScreenResult(template="failures.html", data={"failures": groups})

    async def relays(self, _request: Request) -> ScreenResult:
        data = {
            "relays": await self._inspector.relays(),
            "lanes": await self._inspector.lanes(),
            "blocked": await self._inspector.blocked(),
            "parked": await self._inspector.parked(),
        }
        return ScreenResult(template="relays.html", data=data)

    async def inbox(self, _request: Request) -> ScreenResult:
        handled = await self._inspector.handled()
        handlers = [{"handler": name, "events": n, "last": last} for name, n, last in handled]
        return ScreenResult(template="inbox.html", data={"handlers": handlers})

    async def audit(self, _request: Request) -> ScreenResult:
        rows = [dict(row._mapping) for row in await self._inspector.actions(limit=MAX_PAGE)]
        return ScreenResult(template="audit.html", data={"actions": rows})

    async def _at_sinks(self, request: Request) -> list[EventSummary]:
        """The event of this request, once for each of its sinks."""
        events = await self._inspector.event(request.path_params["event_id"])
        if not events:
            raise HttpError(404, "There is no such event; it may have been deleted.")
        return events

    async def _causes(self, event: EventSummary) -> list[EventSummary]:
        causes: list[EventSummary] = []
        while event.causation_id and len(causes) < _MAX_DEPTH:
            try:
                at_sinks = await self._inspector.event(UUID(event.causation_id))
            except ValueError:
                break
            if not at_sinks:
                break
            event = at_sinks[0]
            causes.insert(0, event)
        return causes

    async def _tree(self, events: Sequence[EventSummary]) -> list[JsonObject]:
        """Built level by level; an event with several sinks is one node."""
        roots: list[JsonObject] = []
        branches: dict[str, list[JsonObject]] = {str(events[0].event_id): roots}
        for _ in range(_MAX_DEPTH):
            events = [
                event
                for event in await self._inspector.caused_by(events)
                if str(event.event_id) not in branches
            ]
            for event in events:
                if str(event.event_id) not in branches:
                    branches[str(event.event_id)] = []
                    node = {"event": event, "caused": branches[str(event.event_id)]}
                    branches[str(event.causation_id)].append(node)
            if not events or len(branches) > MAX_PAGE:
                break
        return roots


def _filter_of(group: FailureGroup) -> EventFilter:
    # A type with a star, which another program wrote, would be read as a pattern.
    event_type = None if "*" in group.event_type else group.event_type
    return EventFilter(status="failed", sink=group.sink, event_type=event_type, error=group.error)


def _number(request: Request, name: str, maximum: int) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= maximum):
        raise HttpError(400, f"{name}: expected a number up to {maximum}.")
    return int(text)


def _timeline(
    events: Sequence[EventSummary],
    attempts: Sequence[RefusedAttempt],
    handled: Sequence[tuple[str, datetime]],
) -> list[JsonObject]:
    """The steps of an event: past steps in order, then the next attempt."""
    first = events[0]
    steps: list[JsonObject] = [
        {"at": first.occurred_at, "what": "happened", "note": ""},
        {"at": first.created_at, "what": "recorded", "note": f"position {first.position}"},
    ]
    for event in events:
        kept = [each for each in attempts if each.sink == event.sink]
        for each in kept:
            note = f"{event.sink}, attempt {each.attempt}"
            steps.append({"at": each.at, "what": "refused", "note": note, "error": each.reason})
        if event.crash_count or (not kept and (event.retry_count or event.last_error)):
            note = f"{event.sink}: {event.retry_count} attempts used, {event.crash_count} crashes"
            error = None if kept else event.last_error
            steps.append({"at": None, "what": "refused", "note": note, "error": error})
        if event.status in _FINAL_STATUSES:
            note = (
                event.sink
                if event.delivery_number is None
                else f"{event.sink}, delivery {event.delivery_number}"
            )
            steps.append({"at": event.published_at, "what": event.status, "note": note})
        if event.next_retry_at is not None:
            steps.append({"at": event.next_retry_at, "what": "next attempt", "note": event.sink})
    return steps + [{"at": at, "what": "handled", "note": name} for name, at in handled]

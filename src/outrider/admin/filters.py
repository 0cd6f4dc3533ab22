"""The event filter: selects events for lists, counts and bulk actions alike."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from outrider.errors import ConfigurationError
from outrider.events.patterns import check_pattern
from outrider.lanes import aggregate_key
from outrider.store.schema.tables import DISCARDED, FAILED, PENDING, PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import ColumnElement, FromClause

    from outrider.events.strict_json import JsonObject

RETRYING: Final = "retrying"
PARKED: Final = "parked"
"""What lists say of a pending event behind a failed one; no filter selects by it."""
STATUSES: Final = (PENDING, RETRYING, FAILED, PUBLISHED, DISCARDED)


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Selects events that meet all given conditions; an empty filter selects every event."""

    sink: str | None = None
    status: str | None = None
    """One of STATUSES; every retrying event is pending too."""
    event_type: str | None = None
    """An event type, or a pattern such as order.*"""
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    event_id: UUID | None = None
    error: str | None = None
    """The last error, exactly as it is stored."""
    since: datetime | None = None
    until: datetime | None = None
    """The time of recording: at or after `since`, before `until`."""
    first: int | None = None
    last: int | None = None
    """The range of positions; both ends are included."""

    def __post_init__(self) -> None:
        problems = []
        if self.status is not None and self.status not in STATUSES:
            problems.append(_bad_status(self.status))
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                problems.append(f"{name}: give a time with its zone, such as 2026-01-31T12:00:00Z")
        try:
            if self.event_type is not None:
                check_pattern(self.event_type)
        except ConfigurationError as problem:
            problems.append(str(problem))
        if problems:
            raise ConfigurationError("; ".join(problems))

    @classmethod
    def parse(cls, given: Mapping[str, str | None]) -> EventFilter:
        """Parse texts from a URL or a command line; empty texts are ignored."""
        values: JsonObject = {}
        for field in fields(cls):
            if text := given.get(field.name):
                try:
                    values[field.name] = _PARSERS.get(field.name, _text)(text)
                except (ValueError, OverflowError):
                    raise ConfigurationError(
                        f"{field.name}: {text!r} is not understood; write {_RULES[field.name]}"
                    ) from None
        return cls(**values)

    def texts(self) -> dict[str, str]:
        """The reverse of `parse`: this filter as texts, for a URL, a log line or an audit row."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in given.items()
            if value is not None
        }

    @property
    def aggregate(self) -> int | None:
        """The indexed key of the selected aggregate; None unless exactly one is selected."""
        parts = (self.sink, self.aggregate_type, self.aggregate_id)
        return None if None in parts else aggregate_key(*map(str, parts))

    def conditions(self, table: FromClause) -> list[ColumnElement[bool]]:
        c = table.c
        plain = {
            c.sink: self.sink,
            c.aggregate_type: self.aggregate_type,
            c.aggregate_id: self.aggregate_id,
            c.id: self.event_id,
            c.last_error: self.error,
        }
        conditions: list[ColumnElement[bool]] = [
            column == value for column, value in plain.items() if value is not None
        ]
        if self.aggregate is not None:
            conditions.append(c.aggregate_key == self.aggregate)
        if self.event_type is not None:
            conditions.append(_of_type(table, self.event_type))
        if self.status is not None:
            conditions += _with_status(table, self.status)
        if self.since is not None:
            conditions.append(c.created_at >= self.since)
        if self.until is not None:
            conditions.append(c.created_at < self.until)
        if self.first is not None:
            conditions.append(c.position >= self.first)
        if self.last is not None:
            conditions.append(c.position <= self.last)
        return conditions


def _bad_status(status: str) -> str:
    hint = "; `outrider parked` lists what is parked" if status == PARKED else ""
    return f"status {status!r}: use one of {', '.join(STATUSES)}{hint}"


def _of_type(table: FromClause, pattern: str) -> ColumnElement[bool]:
    column = table.c.event_type
    if pattern.endswith("*"):
        return column.startswith(pattern[:-1], autoescape=True)
    return column == pattern


def _with_status(table: FromClause, status: str) -> list[ColumnElement[bool]]:
    c = table.c
    # The extra condition lets the planner use the partial index on aggregates.
    unpublished = [c.published_at.is_(None)] if status in (PENDING, RETRYING) else []
    if status == RETRYING:
        return [c.status == PENDING, c.next_retry_at.is_not(None), *unpublished]
    return [c.status == status, *unpublished]


def _text(text: str) -> str:
    if "\0" in text:  # PostgreSQL cannot store this character
        raise ValueError
    return text


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _position(text: str) -> int:
    if (position := int(text)) >= 2**63 or position < 0:
        raise ValueError(text)
    return position


_RULES: Final = {
    **{field.name: "text without the character NUL" for field in fields(EventFilter)},
    "event_id": "an id such as 0195d0a2-0000-7000-8000-000000000001",
    **dict.fromkeys(("since", "until"), "a time such as 2026-01-31T12:00Z"),
    **dict.fromkeys(("first", "last"), "a position, a whole number"),
}
_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "event_id": UUID,
    "since": _moment,
    "until": _moment,
    "first": _position,
    "last": _position,
}

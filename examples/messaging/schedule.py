"""When a scheduled message is due: recurrence rules, read in the message's own time zone."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Self
from zoneinfo import ZoneInfo, available_timezones

from dateutil.rrule import rrulestr
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator


def _within_reason(moment: datetime) -> datetime:
    """Near the ends of the calendar a change of zone overflows, and rules are long to follow."""
    if not datetime(2000, 1, 1, tzinfo=UTC) <= moment < datetime(2100, 1, 1, tzinfo=UTC):
        raise ValueError("not between the years 2000 and 2100")
    return moment.astimezone(UTC)


def _known_zone(name: str) -> str:
    if name not in _zones():
        raise ValueError("no such time zone; write it like Europe/Berlin")
    return name


@cache
def _zones() -> set[str]:
    return available_timezones()


def _some(value: str) -> str:
    return f"{value}(,{value})*"


_DAY = "(MO|TU|WE|TH|FR|SA|SU)"
_DAY_OF_MONTH = "-?([1-9]|[12][0-9]|3[01])"
_ALWAYS = {
    "FREQ": "DAILY|WEEKLY|MONTHLY|YEARLY",
    "INTERVAL": "[1-9][0-9]?",
    "COUNT": "[1-9][0-9]{0,3}",
    "WKST": _DAY,
}
_BY: dict[str, dict[str, str]] = {
    "DAILY": {},
    "WEEKLY": {"BYDAY": _some(_DAY)},
    "MONTHLY": {
        "BYDAY": _some(f"([+-]?[1-5])?{_DAY}"),
        "BYMONTHDAY": _some(_DAY_OF_MONTH),
        "BYSETPOS": "-?1",
    },
    "YEARLY": {"BYMONTH": _some("([1-9]|1[0-2])"), "BYMONTHDAY": _some(_DAY_OF_MONTH)},
}


def _known_rule(rule: str) -> str:
    """The part of RFC 5545 that is of use here.

    What is left out would make the search for the next date long, up to one that never comes.
    """
    pairs = [part.partition("=")[::2] for part in rule.split(";")]
    parts = dict(pairs)
    if parts.get("FREQ") not in _BY:
        raise ValueError(f"FREQ is one of {', '.join(_BY)}")
    allowed = _ALWAYS | _BY[parts["FREQ"]]
    if len(parts) < len(pairs) or not parts.keys() <= allowed.keys():
        raise ValueError(f"with this FREQ, each once at most: {', '.join(allowed)}")
    for name, value in parts.items():
        if not re.fullmatch(allowed[name], value):
            raise ValueError(f"{name} has a value that it cannot have")
    if {"BYDAY", "BYMONTHDAY"} <= parts.keys():
        raise ValueError("BYDAY or BYMONTHDAY, not both")
    return rule


Moment = Annotated[AwareDatetime, AfterValidator(_within_reason)]
Zone = Annotated[str, AfterValidator(_known_zone), Field(examples=["Europe/Berlin"])]
Rule = Annotated[
    str, Field(max_length=255, examples=["FREQ=WEEKLY;BYDAY=MO,FR"]), AfterValidator(_known_rule)
]


class Schedule(BaseModel):
    """Once at `scheduled_at`, or from then on by a rule: at the same time of day, whatever the
    clocks of the zone do in between."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    scheduled_at: Moment
    timezone: Zone = "UTC"
    is_recurring: bool = False
    recurrence_rule: Rule | None = None
    recurrence_end_at: Moment | None = None

    @model_validator(mode="after")
    def _recurs_by_a_rule(self) -> Self:
        if self.is_recurring != (self.recurrence_rule is not None):
            raise ValueError("a recurring message has a recurrence_rule, any other has none")
        if self.recurrence_end_at and not self.is_recurring:
            raise ValueError("recurrence_end_at is for recurring messages")
        return self

    def next_trigger(self, after: datetime) -> datetime | None:
        """The first time later than this moment, None if there is none."""
        end = self.recurrence_end_at
        due = next((moment for moment in self._moments(after) if moment > after), None)
        return None if due is None or (end and due > end) else due

    def _moments(self, after: datetime) -> Iterator[datetime]:
        if self.recurrence_rule is None:
            yield self.scheduled_at
            return
        zone = ZoneInfo(self.timezone)
        start = self.scheduled_at.astimezone(zone).replace(tzinfo=None)
        rule = rrulestr(self.recurrence_rule, dtstart=start)
        # The wall clock jumps twice a year, so a day earlier is early enough to start looking.
        since = after.astimezone(zone).replace(tzinfo=None) - timedelta(days=1)
        for wall_clock in rule.xafter(since):
            # Rules know whole seconds only.
            exact = wall_clock.replace(microsecond=start.microsecond, tzinfo=zone)
            yield exact.astimezone(UTC)

"""When a scheduled message is due: rules, zones and the days on which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from examples.messaging.schedule import Schedule

BERLIN = ZoneInfo("Europe/Berlin")


def schedule(start: datetime, rule: str | None = None, zone: str = "Europe/Berlin") -> Schedule:
    return Schedule(
        scheduled_at=start, timezone=zone, is_recurring=rule is not None, recurrence_rule=rule
    )


def triggers(plan: Schedule, after: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < count and (due := plan.next_trigger(found[-1] if found else after)):
        found.append(due)
    return found


def test_daily_rule_keeps_its_local_time_over_both_changes_of_the_clocks() -> None:
    plan = schedule(datetime(2026, 1, 1, 9, tzinfo=BERLIN), "FREQ=DAILY")

    spring = triggers(plan, datetime(2026, 3, 27, 12, tzinfo=UTC), 3)
    autumn = triggers(plan, datetime(2026, 10, 23, 12, tzinfo=UTC), 3)

    assert [due.hour for due in spring] == [8, 7, 7]
    assert [due.hour for due in autumn] == [7, 8, 8]
    assert {due.astimezone(BERLIN).hour for due in spring + autumn} == {9}


@given(
    zone=st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo"]
    ),
    start=st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC)),
    days=st.integers(0, 800),
)
def test_daily_rule_is_due_within_a_day_and_at_its_own_time_unless_the_clock_skips_it(
    zone: str, start: datetime, days: int
) -> None:
    after, place = start + timedelta(days=days, minutes=days), ZoneInfo(zone)
    time_of_day = start.astimezone(place).time()

    due = schedule(start, "FREQ=DAILY", zone).next_trigger(after)

    assert due is not None
    assert after < due <= after + timedelta(hours=25)
    local = due.astimezone(place)
    wanted = datetime.combine(local, time_of_day, place)
    exists = wanted.astimezone(UTC).astimezone(place).time() == time_of_day
    assert local.time() == time_of_day or not exists


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # 02:30 does not exist on this day: it is 03:30, and still to come at 03:10.
        (datetime(2026, 3, 29, 0, 0, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
        (datetime(2026, 3, 29, 1, 10, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
        # 02:30 happens twice on this day: the first counts, the second is no reason to send again.
        (datetime(2026, 10, 24, 23, 0, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 1, 15, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)),
    ],
)
def test_hour_that_is_skipped_or_repeated_triggers_once(
    after: datetime, expected: datetime
) -> None:
    plan = schedule(datetime(2026, 1, 1, 2, 30, tzinfo=BERLIN), "FREQ=DAILY")

    assert plan.next_trigger(after) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("FREQ=DAILY;INTERVAL=10", ["2026-01-01", "2026-01-11", "2026-01-21"]),
        ("FREQ=WEEKLY;BYDAY=MO,FR", ["2026-01-02", "2026-01-05", "2026-01-09"]),
        ("FREQ=WEEKLY;INTERVAL=2;WKST=SU", ["2026-01-01", "2026-01-15", "2026-01-29"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("FREQ=MONTHLY;BYDAY=+2TU", ["2026-01-13", "2026-02-10", "2026-03-10"]),
        (
            "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
            ["2026-01-30", "2026-02-27", "2026-03-31"],
        ),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("COUNT=2;FREQ=DAILY", ["2026-01-01", "2026-01-02"]),
    ],
)
def test_rules_mean_what_the_standard_says(rule: str, expected: list[str]) -> None:
    plan = schedule(datetime(2026, 1, 1, 9, tzinfo=BERLIN), rule)

    found = triggers(plan, datetime(2025, 12, 31, tzinfo=UTC), 3)

    assert [due.astimezone(BERLIN).date().isoformat() for due in found] == expected


def test_message_without_a_rule_is_due_once() -> None:
    plan = schedule(start := datetime(2026, 1, 1, 9, tzinfo=BERLIN))

    assert triggers(plan, datetime(2025, 1, 1, tzinfo=UTC), 2) == [start]


def test_rule_ends_with_its_end() -> None:
    start = datetime(2026, 1, 1, 9, tzinfo=BERLIN)
    end = start + timedelta(days=1)
    plan = schedule(start, "FREQ=DAILY").model_copy(update={"recurrence_end_at": end})

    assert triggers(plan, datetime(2025, 1, 1, tzinfo=UTC), 9) == [start, end]


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "every day",
        "FREQ=HOURLY",
        "FREQ=SECONDLY",
        "freq=daily",
        "RRULE:FREQ=DAILY",
        "FREQ=DAILY;FREQ=WEEKLY",
        "FREQ=DAILY;",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;COUNT=0",
        "FREQ=DAILY;COUNT=2;UNTIL=20270101T000000",
        "FREQ=DAILY;BYSETPOS=2",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=WEEKLY;BYDAY=XX",
        "FREQ=WEEKLY;BYDAY=MO,,TU",
        "FREQ=WEEKLY;BYDAY=2MO",
        "FREQ=MONTHLY;BYMONTHDAY=0",
        "FREQ=MONTHLY;BYMONTHDAY=32",
        "FREQ=MONTHLY;BYDAY=1MO;BYMONTHDAY=20",
        "FREQ=YEARLY;BYMONTH=13;BYMONTHDAY=1",
        "FREQ=DAILY\nDTSTART:20260101T000000",
        "FREQ=DAILY\x00",
        "FREQ=DAILY;INTERVAL=\u0661",
        "FREQ=DAILY;COUNT=" + "9" * 300,
    ],
)
def test_rule_that_makes_no_sense_or_endless_work_is_refused(rule: str) -> None:
    with pytest.raises(ValidationError, match="recurrence_rule"):
        schedule(datetime(2026, 1, 1, 9, tzinfo=BERLIN), rule)


@pytest.mark.parametrize(
    "zone", ["", "Berlin", "Europe", "europe/berlin", "../UTC", "/etc/passwd", "\x00", "\ud800"]
)
def test_zone_that_nobody_knows_is_refused(zone: str) -> None:
    with pytest.raises(ValidationError, match="timezone"):
        schedule(datetime(2026, 1, 1, 9, tzinfo=BERLIN), None, zone)


@pytest.mark.parametrize(
    "given_fields",
    [
        {"is_recurring": True},
        {"recurrence_rule": "FREQ=DAILY"},
        {"recurrence_end_at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"scheduled_at": datetime(2026, 1, 1)},
        {"scheduled_at": "9999-12-31T23:59:59-14:00"},
        {"scheduled_at": "0001-01-01T00:00:00+14:00"},
    ],
)
def test_schedule_that_contradicts_itself_is_refused(given_fields: dict[str, object]) -> None:
    fields = {"scheduled_at": datetime(2026, 1, 1, tzinfo=UTC), **given_fields}

    with pytest.raises(ValidationError):
        Schedule.model_validate(fields)

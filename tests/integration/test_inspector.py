"""Looking and repairing: what a person sees of the outbox, and what an action changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import (
    ConfigurationError,
    DomainEvent,
    InMemoryEventBus,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
)
from outrider.admin.filters import EventFilter
from outrider.admin.inspector import OutboxInspector
from outrider.admin.repair import CountChanged, OutboxRepair
from outrider.admin.replay import Replay
from outrider.events.context import handling

outbox = Outbox(wake_up=False)
QUICK = RelayConfig(poll_interval=timedelta(milliseconds=20))


def changed(aggregate: str = "a", event_type: str = "thing.changed") -> DomainEvent:
    return DomainEvent(event_type, "thing", aggregate, {"secret": "canary-7b1"})


async def record(engine: AsyncEngine, *events: DomainEvent, routes: object = None) -> None:
    box = outbox if routes is None else Outbox(wake_up=False, routes=routes)  # type: ignore[arg-type]
    async with engine.begin() as connection:
        box.record(connection, *events)


async def run(engine: AsyncEngine, statement: str, **values: object) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement), values)


async def fail(engine: AsyncEngine, event_type: str, error: str = "Refused") -> None:
    await run(
        engine,
        "UPDATE outbox SET status = 'failed', last_error = :error, retry_count = 9 "
        "WHERE event_type = :type",
        error=error,
        type=event_type,
    )


async def drain(engine: AsyncEngine, sink: str = "default") -> InMemoryEventBus:
    """Let a relay publish all that is pending."""
    bus = InMemoryEventBus()
    async with OutboxRelay(SqlOutboxStore(engine, sink=sink), bus, QUICK), asyncio.timeout(30):
        while await OutboxInspector(engine).count(EventFilter(sink=sink, status="pending")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return bus


async def test_overview_tells_what_waits_what_failed_and_who_works(database: AsyncEngine) -> None:
    await record(database, *(changed(f"a{n}") for n in range(3)))
    await drain(database)
    await record(database, *(changed(f"a{n}") for n in range(4)), changed("b", "thing.broken"))
    await fail(database, "thing.broken")
    await run(database, "UPDATE outbox SET next_retry_at = created_at WHERE position = 4 AND 1 = 1")

    inspector = OutboxInspector(database)
    [state] = await inspector.sinks()

    assert (state.sink, state.pending, state.retrying, state.failed) == ("default", 4, 1, 1)
    assert (state.estimated, state.last_delivery_number) == (False, 3)
    assert state.oldest is not None
    assert state.oldest >= timedelta(0)
    assert state.rate == pytest.approx(3 / 60)
    assert state.time_to_empty == timedelta(seconds=80)


async def test_relays_are_shown_with_their_lanes(database: AsyncEngine) -> None:
    config = RelayConfig(name="r-1")

    async with OutboxRelay(SqlOutboxStore(database), InMemoryEventBus(), config):
        [line] = await OutboxInspector(database).relays()

    assert (line.name, line.lanes, line.alive) == ("r-1", 64, True)
    assert await OutboxInspector(database).relays() == []


async def test_pages_follow_each_other_without_gap_or_repeat(database: AsyncEngine) -> None:
    await record(database, *(changed(f"a{n % 3}") for n in range(25)))
    inspector, seen, before = OutboxInspector(database), [], None

    while True:
        page = await inspector.events(EventFilter(), before=before, limit=10)
        seen += [line.position for line in page.events]
        if page.older is None:
            break
        before = page.older

    assert seen == list(range(25, 0, -1))


async def test_every_part_of_a_filter_narrows(database: AsyncEngine) -> None:
    await record(database, changed("a"), changed("a", "other.made"), changed("b"))
    await fail(database, "other.made", error="Boom")
    inspector = OutboxInspector(database)
    now = datetime.now(UTC)
    [line] = (await inspector.events(EventFilter(status="failed"))).events

    counts = {
        str(given): await inspector.count(EventFilter.parse(given))
        for given in (
            {"event_type": "thing.*"},
            {"event_type": "other.made", "status": "failed"},
            {"aggregate_id": "a"},
            {"aggregate_id": "a", "aggregate_type": "thing", "sink": "default"},
            {"error": "Boom"},
            {"event_id": str(line.event_id)},
            {"since": (now + timedelta(hours=1)).isoformat()},
            {"until": (now + timedelta(hours=1)).isoformat()},
            {"first": "2", "last": "3"},
            {"event_type": "100%_*"},
            {"event_type": "' OR 1=1 --"},
        )
    }

    assert list(counts.values()) == [2, 1, 2, 2, 1, 1, 0, 3, 2, 0, 0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"status": "lost"}, "status 'lost'"),
        ({"event_id": "x"}, "event_id: 'x'"),
        ({"since": "yesterday"}, "since: 'yesterday'"),
        ({"event_type": "a*b"}, "no pattern"),
        ({"first": "one"}, "first: 'one'"),
    ],
)
def test_wrong_filter_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        EventFilter.parse(given)


async def test_story_of_one_event(database: AsyncEngine) -> None:
    cause = changed("a").to_envelope()
    with handling(cause):
        effects = [changed("x", "effect.made"), changed("y", "effect.made")]
        effects_of = [e.to_envelope() for e in effects]
    await record(database, changed("a"), routes={"*": ["one", "two"]})
    async with database.begin() as connection:
        outbox.record(connection, cause)
    async with database.begin() as connection:
        with handling(cause):
            outbox.record(connection, *effects)
    await record(database, changed("a"))
    inspector = OutboxInspector(database)

    [line] = await inspector.event(cause.event_id)
    caused = await inspector.caused_by([line])
    near = await inspector.neighbours(line)

    assert {found.event_id for found in caused} == {e.event_id for e in effects_of}
    assert {found.causation_id for found in caused} == {str(cause.event_id)}
    assert [found.position - line.position for found in near] == [0, 3]
    assert await inspector.payload(cause.event_id) == {"secret": "canary-7b1"}
    assert "canary" not in repr(line)


async def test_parked_events_are_counted_and_listed_behind_their_failed_event(
    database: AsyncEngine,
) -> None:
    first, *behind, other = [changed(name) for name in "aaab"]
    await record(database, first, *behind, other)
    await fail(database, "thing.changed")
    await run(database, "UPDATE outbox SET status = 'pending' WHERE position > 1")
    await run(database, "UPDATE outbox SET created_at = '2020-01-01 00:00:00' WHERE position < 4")
    inspector = OutboxInspector(database)

    await opened(database, park=True)
    [sink] = await inspector.sinks()
    [aggregate] = await inspector.parked()
    listed = (await inspector.events(EventFilter())).events
    near = await inspector.neighbours(listed[-1])

    assert (sink.pending, sink.parked, sink.failed, sink.time_to_empty) == (3, 2, 1, None)
    assert sink.oldest is not None
    assert sink.oldest < timedelta(days=1)  # of the event that is not parked
    assert (aggregate.failed.event_id, aggregate.events) == (first.event_id, 2)
    assert [line.status for line in listed] == ["pending", "parked", "parked", "failed"]
    assert [line.status for line in near] == ["failed", "parked", "parked"]

    await opened(database, park=False)  # relays now publish what waits: nothing is parked
    assert [sink.parked for sink in await inspector.sinks()] == [0]
    assert await inspector.parked() == []


async def test_time_to_empty_is_unknown_while_something_is_parked(database: AsyncEngine) -> None:
    await record(database, changed("b"))
    await drain(database)
    await opened(database, park=True)
    await record(database, changed("a", "a.broken"), changed("a"))
    await fail(database, "a.broken")

    [sink] = await OutboxInspector(database).sinks()

    assert sink.rate > 0
    assert (sink.pending, sink.parked, sink.oldest, sink.time_to_empty) == (1, 1, None, None)


async def opened(engine: AsyncEngine, *, park: bool) -> None:
    """As a relay opens its store when it starts."""
    store = SqlOutboxStore(engine, park=park)
    await store.open(lambda _: None)
    await store.close()


async def test_failures_are_grouped_by_type_and_error(database: AsyncEngine) -> None:
    await record(database, *(changed(f"a{n}", f"t.{n % 2}") for n in range(5)))
    await fail(database, "t.0", "Away")
    await fail(database, "t.1", "Bad")

    groups = await OutboxInspector(database).failures()

    assert [(g.event_type, g.error, g.events) for g in groups] == [
        ("t.0", "Away", 3),
        ("t.1", "Bad", 2),
    ]


async def test_retried_events_are_delivered_and_the_action_is_remembered(
    database: AsyncEngine,
) -> None:
    await record(database, *(changed(f"a{n}", f"t.{n % 2}") for n in range(6)))
    await fail(database, "t.0")
    await fail(database, "t.1")
    repair = OutboxRepair(database, who="ada")

    with pytest.raises(CountChanged, match="3 events match now, not 2"):
        await repair.retry(EventFilter(event_type="t.0"), expected=2)
    changed_now = await repair.retry(EventFilter(event_type="t.0"), expected=3)
    bus = await drain(database)

    assert changed_now == 3
    assert {e.event_type for e in bus.published_events} == {"t.0"}
    [action] = await OutboxInspector(database).actions()
    assert (action.who, action.action, action.events) == ("ada", "retry", 3)
    assert action.filter == '{"event_type": "t.0"}'


async def test_discarded_events_are_kept_and_never_sent(database: AsyncEngine) -> None:
    await record(database, changed("a"), changed("b"))

    discarded = await OutboxRepair(database).discard(EventFilter(aggregate_id="a"))
    bus = await drain(database)

    assert discarded == 1
    assert [e.aggregate_id for e in bus.published_events] == ["b"]
    assert await OutboxInspector(database).count(EventFilter(status="discarded")) == 1


async def test_purge_deletes_what_is_done_and_nothing_that_waits(database: AsyncEngine) -> None:
    await record(database, *(changed(f"a{n}") for n in range(5)))
    await drain(database)
    await record(database, changed("late"))

    deleted = await OutboxRepair(database).delete(EventFilter())

    assert deleted == 5
    assert await OutboxInspector(database).count(EventFilter()) == 1


async def test_replayed_events_come_once_more_in_order_and_marked(database: AsyncEngine) -> None:
    events = [changed(f"a{n % 3}") for n in range(30)]
    await record(database, *events)
    await drain(database)
    replay = Replay(database, who="ada", rate=1000)

    number = await replay.begin(EventFilter(aggregate_id="a1"))
    await record(database, changed("a1"))  # after the replay began: no part of it
    assert await replay.run(number) == 10
    assert await replay.run(number) == 10  # a second run finds it done
    bus = await drain(database)

    again = [e for e in bus.published_events if e.metadata.replay_id == str(number)]
    assert [e.event_id for e in again] == [e.event_id for e in events if e.aggregate_id == "a1"]
    assert len(bus.published_events) == 11


async def test_replayed_and_retried_events_are_innocent_of_earlier_crashes(
    database: AsyncEngine,
) -> None:
    events = [changed(f"a{n}", f"t.{n % 2}") for n in range(4)]
    await record(database, *events)
    await drain(database)
    await fail(database, "t.1")
    await run(database, "UPDATE outbox SET crash_count = 99")

    replay = Replay(database)
    await replay.run(await replay.begin(EventFilter()))
    await OutboxRepair(database).retry(EventFilter())
    await run(
        database,
        "UPDATE outbox_lanes SET owner = :dead, expires_at = '2020-01-01 00:00:00'",
        dead=UUID(int=7) if database.dialect.name == "postgresql" else UUID(int=7).hex,
    )
    bus = await drain(database)

    assert {e.event_id for e in bus.published_events} == {e.event_id for e in events}


async def test_replay_to_another_sink_copies_and_leaves_the_first_alone(
    database: AsyncEngine,
) -> None:
    events = [changed(f"a{n % 3}") for n in range(9)]
    await record(database, *events)
    await drain(database)
    replay = Replay(database)

    number = await replay.begin(EventFilter(event_type="thing.*"), to="archive")
    assert await replay.run(number) == 9
    bus = await drain(database, sink="archive")

    inspector = OutboxInspector(database)
    assert {e.event_id for e in bus.published_events} == {e.event_id for e in events}
    assert {e.metadata.replay_id for e in bus.published_events} == {str(number)}
    assert await inspector.count(EventFilter(sink="default", status="published")) == 9


async def test_unknown_replay_is_refused(database: AsyncEngine) -> None:
    with pytest.raises(ConfigurationError, match="no replay 77"):
        await Replay(database).run(77)


async def test_unknown_event_is_nothing(database: AsyncEngine) -> None:
    assert await OutboxInspector(database).event(uuid4()) == []
    assert await OutboxInspector(database).payload(UUID(int=7)) is None


@pytest.mark.parametrize(("few", "surveyed"), [(100, 1_000), (3, 1_000), (3, 5)])
async def test_pages_of_a_state_are_complete_whether_few_or_many_are_in_it(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch, few: int, surveyed: int
) -> None:
    await record(database, *(changed(f"a{n % 3}", f"t.{n % 4}") for n in range(40)))
    await fail(database, "t.1")
    for name, value in (("MAX_COUNTED", few), ("_MAX_SURVEYED", surveyed), ("SEARCH_WINDOW", 7)):
        monkeypatch.setattr(f"outrider.admin.inspector.{name}", value)

    found = {
        wanted: await all_pages(OutboxInspector(database), wanted)
        for wanted in (
            EventFilter(status="failed"),
            EventFilter(status="pending", event_type="t.2"),
        )
    }

    assert list(found.values()) == [list(range(38, 0, -4)), list(range(39, 0, -4))]


async def all_pages(inspector: OutboxInspector, wanted: EventFilter) -> list[int]:
    seen: list[int] = []
    page = await inspector.events(wanted, limit=2)
    seen += [line.position for line in page.events]
    while page.older is not None:
        page = await inspector.events(wanted, before=page.older, limit=2)
        seen += [line.position for line in page.events]
    return seen


async def test_sink_that_never_had_a_relay_is_shown(database: AsyncEngine) -> None:
    await record(database, changed(), routes={"*": ["new", "newer"]})

    found = await OutboxInspector(database).sinks()

    assert [(state.sink, state.pending, state.last_delivery_number) for state in found] == [
        ("new", 1, 0),
        ("newer", 1, 0),
    ]
    assert await OutboxInspector(database).sink_names() == ["new", "newer"]


async def test_many_in_trouble_are_counted_as_at_least(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(database, *(changed(f"a{n}") for n in range(4)))
    await fail(database, "thing.changed")
    await record(database, changed())
    monkeypatch.setattr("outrider.admin.backlog.MAX_VISITED", 3)

    [state] = await OutboxInspector(database).sinks()

    assert (state.failed, state.at_least) == (3, True)


async def test_discard_takes_failed_and_pending_events_in_steps(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(database, *(changed(f"a{n}", f"t.{n % 2}") for n in range(9)))
    await fail(database, "t.1")
    monkeypatch.setattr("outrider.admin.repair.STEP_EVENTS", 2)
    repair = OutboxRepair(database)

    assert await repair.count("discard", EventFilter()) == 9
    assert await repair.discard(EventFilter(), expected=9) == 9
    assert await OutboxInspector(database).count(EventFilter(status="discarded")) == 9

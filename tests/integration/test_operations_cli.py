"""The commands by which people look at events and repair them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from outrider import DomainEvent, Outbox, create_all
from outrider.cli.app import app
from tests.integration.databases import DIALECTS, Database, fresh

CANARY = "canary-7b1"
outbox = Outbox(wake_up=False)


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as made:
        yield made


def outrider(database: Database, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(
        app, arguments, env={"DATABASE_URL": database.url}, input=stdin, catch_exceptions=False
    )


def facts(database: Database, *arguments: str) -> Any:
    return json.loads(outrider(database, *arguments, "--json").stdout)


def filled(database: Database, *statements: str) -> list[str]:
    """Six events of two types, then whatever else is to be; their ids."""
    events = [DomainEvent(f"t.{n % 2}", "t", f"a{n}", {"secret": CANARY}) for n in range(6)]

    async def fill() -> None:
        engine = database.async_engine()
        await create_all(engine)
        async with engine.begin() as connection:
            outbox.record(connection, *events)
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO outbox_sinks (sink) VALUES ('default')"))
            for statement in statements:
                await connection.execute(text(statement))
        await engine.dispose()

    asyncio.run(fill())
    return [str(event.event_id) for event in events]


FAILED = "UPDATE outbox SET status = 'failed', last_error = 'Boom' WHERE event_type = 't.0'"
PUBLISHED = "UPDATE outbox SET status = 'published', delivery = position"


def count(database: Database, status: str) -> int:
    query = f"SELECT count(*) FROM outbox WHERE status = '{status}'"  # noqa: S608
    return int(database.run(query)[0][0])


def test_status_says_what_waits_for_people_and_programs(database: Database) -> None:
    filled(database, FAILED)

    for_people = outrider(database, "status")
    [sink] = facts(database, "status")["sinks"]

    assert "default" in for_people.stdout
    assert (sink["pending"], sink["failed"], sink["estimated"]) == (3, 3, False)


def test_failed_groups_by_error_and_tells_scripts_by_its_exit_code(database: Database) -> None:
    filled(database)
    fine = outrider(database, "failed")
    database.run(FAILED)
    bad = outrider(database, "failed")
    [group] = facts(database, "failed")["failed"]

    assert (fine.exit_code, bad.exit_code) == (0, 1)
    assert (group["type"], group["error"], group["events"]) == ("t.0", "Boom", 3)
    assert "Boom" in bad.stdout


def test_show_tells_the_story_of_an_event_and_its_payload_only_if_asked(
    database: Database,
) -> None:
    ids = filled(database)

    quiet, asked = (
        outrider(database, "show", ids[0]),
        outrider(database, "show", ids[0], "--payload"),
    )
    unknown = outrider(database, "show", "0195d0a2-0000-7000-8000-000000000001")

    assert ids[0] in quiet.stdout
    assert CANARY not in quiet.stdout
    assert CANARY in asked.stdout
    assert unknown.exit_code == 1
    assert "there is no event" in unknown.stderr


def test_bulk_action_names_the_count_and_waits_for_an_answer(database: Database) -> None:
    filled(database, FAILED)

    no = outrider(database, "retry", "--type", "t.*", stdin="n\n")
    kept = count(database, "failed")
    yes = outrider(database, "retry", "--type", "t.*", stdin="y\n")

    assert "retry 3 events?" in no.stderr
    assert (no.exit_code, kept) == (1, 3)
    assert "retry: 3 events." in yes.stdout
    assert count(database, "failed") == 0


def test_single_events_are_named_by_id(database: Database) -> None:
    ids = filled(database, FAILED)

    assert facts(database, "discard", ids[0], ids[2], "--yes") == {"discard": 2}
    assert count(database, "discarded") == 2
    assert count(database, "failed") == 1


def test_purge_leaves_what_waits(database: Database) -> None:
    filled(database, PUBLISHED + " WHERE event_type = 't.1'")

    assert facts(database, "purge", "--yes") == {"purge": 3}
    assert count(database, "pending") == 3


def test_replay_says_how_to_go_on_and_a_second_run_does_nothing_more(database: Database) -> None:
    filled(database, PUBLISHED)

    first = outrider(database, "replay", "--type", "t.1", "--yes", "--rate", "1000", "--json")
    again = facts(database, "replay", "--resume", "1")

    assert "outrider replay --resume 1" in first.stderr
    assert json.loads(first.stdout) == {"replay": 1, "events": 3}
    assert again == {"replay": 1, "events": 3}
    assert count(database, "pending") == 3


def test_replays_are_listed_so_that_they_can_go_on(database: Database) -> None:
    filled(database, PUBLISHED)
    none = outrider(database, "replay", "--list")
    outrider(database, "replay", "--type", "t.1", "--yes")

    for_people = outrider(database, "replay", "--list")
    [replay] = facts(database, "replay", "--list")["replays"]

    assert none.stdout == "there was none.\n"
    assert "t.1" in for_people.stdout
    assert (replay["id"], replay["filter"]["type"], replay["events"]) == (1, "t.1", 3)
    assert replay["finished_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", str(UUID(int=1)), str(UUID(int=2))], "takes one id"),
        (["replay", "--resume", "1", "--type", "t.1"], "no filter"),
        (["replay", "--resume", "0"], "0 is not in the range"),
        (["retry", "not-an-id"], "id: 'not-an-id'"),
        (["retry", "--since", "soon"], "since: 'soon'"),
        (["retry", "--state", "lost"], "'lost' is not one of"),
        (["show", "x"], "'x' is not a valid UUID"),
        (["retry", "--type", "a*b"], "no pattern"),
    ],
)
def test_wrong_filter_is_one_clear_line(
    database: Database, arguments: list[str], message: str
) -> None:
    done = outrider(database, *arguments)

    assert done.exit_code == 2
    assert message in done.stderr


def test_control_characters_never_reach_the_terminal(database: Database) -> None:
    filled(
        database,
        "UPDATE outbox SET status = 'failed', last_error = 'a' || chr(27) || '[31m'"
        if database.dialect == "postgresql"
        else "UPDATE outbox SET status = 'failed', last_error = 'a' || char(27) || '[31m'",
    )

    assert "\x1b[31m" not in outrider(database, "failed").stdout

"""The commands by which people look at events and repair them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from outrider import DomainEvent, Outbox, create_all
from outrider.cli.app import app
from tests.support.canary import CANARY
from tests.support.databases import DIALECTS, Database, fresh

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
PUBLISHED = "UPDATE outbox SET status = 'published', delivery_number = position"


def count(database: Database, status: str) -> int:
    query = f"SELECT count(*) FROM outbox WHERE status = '{status}'"  # noqa: S608
    return int(database.run(query)[0][0])


def test_status_says_what_waits_for_people_and_programs(database: Database) -> None:
    filled(database, FAILED)

    for_people = outrider(database, "status")
    [sink] = facts(database, "status")["sinks"]

    assert "default" in for_people.stdout
    assert (sink["pending"], sink["failed"], sink["estimated"]) == (3, 3, False)


def test_status_shows_rate_time_to_empty_and_who_works(database: Database) -> None:
    filled(
        database,
        FAILED,
        "UPDATE outbox SET next_retry_at = '2999-01-01 00:00:00' WHERE position = 2",
        "UPDATE outbox SET status = 'published', delivery_number = 1, "
        "published_at = CURRENT_TIMESTAMP WHERE position = 4",
        "INSERT INTO outbox_relays (id, name, sink, started_at, expires_at) VALUES "
        "('0190163d8694739b9d0b12b3c4d5e6f7', 'here:1', 'default', '2000-01-01 00:00:00', "
        "'2999-01-01 00:00:00'), "
        "('0190163d8694739b9d0b12b3c4d5e6f8', 'gone:1', 'default', '2000-01-01 00:00:00', "
        "'2000-01-01 00:00:00')",
        "INSERT INTO outbox_lanes (sink, lane, owner) VALUES "
        "('default', 1, '0190163d8694739b9d0b12b3c4d5e6f7'), "
        "('default', 2, '0190163d8694739b9d0b12b3c4d5e6f7')",
    )

    shown = outrider(database, "status").stdout
    told = facts(database, "status")

    [sink] = told["sinks"]
    assert (sink["pending"], sink["retrying"], sink["failed"]) == (2, 1, 3)
    assert sink["oldest"] >= 0
    assert sink["rate"] > 0
    assert sink["time_to_empty"] == pytest.approx(2 / sink["rate"])
    assert [(r["name"], r["lanes"], r["alive"]) for r in told["relays"]] == [
        ("here:1", 2, True),
        ("gone:1", 0, False),
    ]
    for word in ("pending", "retrying", "failed", "oldest", "per second", "empty in"):
        assert word in shown
    assert "here:1 (2 lanes)" in shown
    assert "gone:1" not in shown


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    made = Database(f"sqlite:///{tmp_path}/shop.db")
    filled(made)
    return made


WATCH = (sys.executable, "-W", "error", "-m", "outrider", "status", "--watch", "--every", "0.1")


def test_watching_gives_programs_a_line_each_time_and_ends_well(sqlite: Database) -> None:
    environment = {**os.environ, "DATABASE_URL": sqlite.url, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*WATCH, "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        lines = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=60)

    assert [line["sinks"][0]["pending"] for line in lines] == [6, 6, 6]
    assert (watching.returncode, complaints) == (0, b"")


def test_watching_on_a_terminal_ends_well_on_ctrl_c(sqlite: Database) -> None:
    environment = {**os.environ, "DATABASE_URL": sqlite.url, "TERM": "xterm", "COLUMNS": "160"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        WATCH,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as watching:
        os.close(theirs)
        screen = b""
        while screen.count(b"default") < 2:  # drawn, and drawn again
            screen += os.read(ours, 4096)
        watching.send_signal(signal.SIGINT)
        with suppress(OSError):  # the terminal is gone when nobody has it open
            while more := os.read(ours, 4096):
                screen += more
        watching.wait(60)
    os.close(ours)

    assert watching.returncode == 0
    assert b"Traceback" not in screen
    assert b"\x1b[?25h" in screen  # the cursor is back


def test_failed_groups_by_error_and_tells_scripts_by_its_exit_code(database: Database) -> None:
    filled(database)
    fine = outrider(database, "failed")
    database.run(FAILED)
    bad = outrider(database, "failed")
    [group] = facts(database, "failed")["failed"]

    assert (fine.exit_code, bad.exit_code) == (0, 1)
    assert (group["event_type"], group["error"], group["events"]) == ("t.0", "Boom", 3)
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


def test_show_lists_the_last_attempts_with_time_and_reason(database: Database) -> None:
    keep = (
        """UPDATE outbox SET attempts = '[{"attempt": 9, "at": "2026-01-02T10:00:00+00:00", """
        """"reason": "KeyError at shop.py:2"}]' WHERE position = 1"""
    )
    ids = filled(database, FAILED, keep)

    shown, told = outrider(database, "show", ids[0]).stdout, facts(database, "show", ids[0])

    assert "refused attempts" in shown
    assert "KeyError at shop.py:2" in shown
    assert told["attempts"] == [
        {
            "sink": "default",
            "attempt": 9,
            "at": "2026-01-02T10:00:00+00:00",
            "reason": "KeyError at shop.py:2",
        }
    ]
    assert facts(database, "show", ids[1])["attempts"] == []


def test_bulk_action_names_the_count_and_waits_for_an_answer(database: Database) -> None:
    filled(database, FAILED)

    no = outrider(database, "retry", "--event-type", "t.*", stdin="n\n")
    kept = count(database, "failed")
    yes = outrider(database, "retry", "--event-type", "t.*", stdin="y\n")

    assert "retry 3 events?" in no.stderr
    assert (no.exit_code, kept) == (1, 3)
    assert "retry: 3 events." in yes.stdout
    assert count(database, "failed") == 0


def test_single_events_are_named_by_id(database: Database) -> None:
    ids = filled(database, FAILED)

    assert facts(database, "discard", ids[0], ids[2], "--yes") == {"discard": 2}
    assert count(database, "discarded") == 2
    assert count(database, "failed") == 1


@pytest.mark.parametrize("named", ["id", "status"])
def test_discarded_event_can_be_brought_back_by_id_or_status(
    database: Database, named: str
) -> None:
    ids = filled(database, FAILED)
    outrider(database, "discard", ids[0], "--yes")
    arguments = [ids[0]] if named == "id" else ["--status", "discarded"]

    done = outrider(database, "retry", *arguments, "--yes")

    assert (done.exit_code, done.stdout) == (0, "retry: 1 events.\n")
    assert (count(database, "discarded"), count(database, "failed")) == (0, 2)
    published_at = "SELECT published_at FROM outbox WHERE aggregate_id = 'a0'"
    assert database.run(published_at) == [(None,)]  # else no claim would wait behind it


def test_retry_by_filter_leaves_discarded_events_alone_and_says_how_to_take_them(
    database: Database,
) -> None:
    filled(database, "UPDATE outbox SET status = 'discarded' WHERE event_type = 't.0'")

    done = outrider(database, "retry", "--event-type", "t.0", "--yes")

    assert (done.exit_code, done.stdout) == (0, "retry: 0 events.\n")
    assert "retry takes failed events; the filter finds 3 discarded" in done.stderr
    assert "status discarded" in done.stderr


@pytest.mark.parametrize("verb", ["retry", "delete", "discard", "replay"])
def test_id_that_an_action_cannot_take_is_told_with_its_status_and_exit_code_1(
    database: Database, verb: str
) -> None:
    status = "published" if verb in ("retry", "discard") else "pending"
    ids = filled(database, f"UPDATE outbox SET status = '{status}'")  # noqa: S608
    unknown = str(UUID(int=7))

    done = outrider(database, verb, ids[0], "--yes")
    nothing = outrider(database, verb, unknown, "--yes")

    assert (done.exit_code, done.stdout) == (1, f"{verb}: 0 events.\n")
    assert f"{ids[0]} is {status}" in done.stderr
    assert f"{verb} takes " in done.stderr
    assert (nothing.exit_code, f"{unknown} is no event here" in nothing.stderr) == (1, True)


PARKED = (
    "UPDATE outbox SET aggregate_key = 7, aggregate_id = 'a0', "
    "created_at = '2020-01-01 00:00:00' WHERE position < 4",
    "UPDATE outbox SET status = 'failed', last_error = 'Boom' WHERE position = 1",
    "UPDATE outbox SET status = 'published', published_at = created_at WHERE position > 3",
    "UPDATE outbox_sinks SET parks = TRUE",
)


def test_parked_aggregate_is_shown_with_the_two_commands_that_end_it(database: Database) -> None:
    ids = filled(database, *PARKED)

    status, listed = outrider(database, "status"), outrider(database, "parked")
    [sink] = facts(database, "status")["sinks"]
    [parked] = facts(database, "parked")["parked"]
    shown = outrider(database, "show", ids[1])

    assert "`outrider parked` shows behind which failed event" in status.stdout
    assert (sink["pending"], sink["parked"], sink["time_to_empty"]) == (2, 2, None)
    assert (parked["events"], parked["failed"]["event_id"]) == (2, ids[0])
    assert listed.exit_code == 1
    for command in (f"outrider retry {ids[0]}", f"outrider discard {ids[0]}"):
        assert [line for line in listed.stdout.splitlines() if line.rstrip().endswith(command)]
    assert "parked" in shown.stdout

    outrider(database, "discard", ids[0], "--yes")

    ended = outrider(database, "parked")
    assert (ended.exit_code, ended.stdout) == (0, "nothing is parked.\n")


def test_doctor_finds_what_is_parked_and_does_not_ask_for_the_broker(database: Database) -> None:
    filled(database, *PARKED)

    checks = facts(database, "doctor")["checks"]

    [parked] = [check for check in checks if "parked" in check["text"]]
    assert parked["text"] == "2 events are parked behind failed ones of their aggregates"
    assert "outrider parked" in parked["cure"]
    assert "outrider retry" in parked["cure"]
    assert not [check for check in checks if "is the broker up" in check["cure"]]
    assert not [check for check in checks if "no relay runs" in check["text"]]


def test_events_that_are_retried_are_told_where_nothing_has_failed(database: Database) -> None:
    filled(database, "UPDATE outbox SET next_retry_at = created_at WHERE position < 3")

    told = outrider(database, "failed")

    assert (told.exit_code, told.stdout) == (0, "nothing has failed.\n")
    assert "2 events were refused and are retried" in told.stderr


def test_some_ids_are_changed_and_the_others_are_told(database: Database) -> None:
    ids = filled(database, FAILED)

    done = outrider(database, "retry", ids[0], ids[1], "--yes")

    assert (done.exit_code, done.stdout) == (1, "retry: 1 events.\n")
    assert f"{ids[1]} is pending" in done.stderr
    assert ids[0] not in done.stderr


def test_delete_keeps_pending_events(database: Database) -> None:
    filled(database, PUBLISHED + " WHERE event_type = 't.1'")

    assert facts(database, "delete", "--yes") == {"delete": 3}
    assert count(database, "pending") == 3


def test_replay_says_how_to_go_on_and_a_second_run_does_nothing_more(database: Database) -> None:
    filled(database, PUBLISHED)

    first = outrider(database, "replay", "--event-type", "t.1", "--yes", "--rate", "1000", "--json")
    again = facts(database, "replay", "--resume", "1")

    assert "outrider replay --resume 1" in first.stderr
    assert json.loads(first.stdout) == {"replay": 1, "events": 3}
    assert again == {"replay": 1, "events": 3}
    assert count(database, "pending") == 3


def test_replays_are_listed_so_that_they_can_go_on(database: Database) -> None:
    filled(database, PUBLISHED)
    none = outrider(database, "replay", "--list")
    outrider(database, "replay", "--event-type", "t.1", "--yes")

    for_people = outrider(database, "replay", "--list")
    [replay] = facts(database, "replay", "--list")["replays"]

    assert none.stdout == "no replays yet.\n"
    assert "t.1" in for_people.stdout
    assert (replay["id"], replay["filter"]["event_type"], replay["events"]) == (1, "t.1", 3)
    assert replay["finished_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", str(UUID(int=1)), str(UUID(int=2))], "takes one id"),
        (["replay", "--resume", "1", "--event-type", "t.1"], "no filter"),
        (["replay", "--resume", "0"], "0 is not in the range"),
        (["retry", "not-an-id"], "id: 'not-an-id'"),
        (["retry", "--since", "soon"], "since: 'soon'"),
        (["retry", "--status", "lost"], "status 'lost': use one of pending, retrying"),
        (["retry", "--status", "parked"], "; `outrider parked` lists what is parked"),
        (["show", "x"], "'x' is not a valid UUID"),
        (["retry", "--event-type", "a*b"], "no pattern"),
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


@pytest.mark.parametrize("command", [["status", "--table"], ["retry", "--event-type"], ["show"]])
def test_argument_that_is_no_text_is_refused(database: Database, command: list[str]) -> None:
    """As bytes of another encoding arrive from a shell."""
    filled(database)

    done = outrider(database, *command, "\udcff")

    assert (done.exit_code, "no valid Unicode" in done.output) == (2, True)

"""First errors of a new user at the command line: one sentence, the cure, the right exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import ConfigurationError, SqlOutboxStore
from outrider.cli.app import app
from tests.support.databases import DIALECTS, Database, fresh
from tests.support.pages.pages import JSON, page_of, run

ID = "0195d0a2-0000-7000-8000-000000000001"
COMMANDS = (
    *("status", "failed", "parked", f"show {ID}", "retry --yes", "discard --yes", "delete --yes"),
    *("replay --yes", "replay --list", "dashboard --port 0"),
)
BROKER = "redis://localhost:1"


@pytest.fixture(params=DIALECTS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database that is there, and has no outbox."""
    with fresh(request.param, request, tmp_path) as made:
        made.run("CREATE TABLE business (id integer)")
        yield made


def outrider(database: Database, command: str, **environment: str) -> Result:
    known = {"DATABASE_URL": database.url, "OUTBOX_TO": BROKER}
    return CliRunner().invoke(app, command.split(), env=known | environment)


def problem(done: Result) -> str:
    """The one line of an error, after the log."""
    assert "Traceback" not in done.output
    assert not done.exception or isinstance(done.exception, SystemExit)
    return done.output.strip().splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_tables_are_told_with_the_command_that_makes_them(
    empty: Database, command: str
) -> None:
    done = outrider(empty, command)

    assert done.exit_code == 1
    assert problem(done).endswith("; run `outrider schema apply`")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("change", "cure"),
    [("DELETE FROM outbox_schema WHERE version > 1", "run `outrider schema apply`"),
     ("INSERT INTO outbox_schema (version) VALUES (99)", "upgrade outrider")],
    ids=["older", "newer"],
)  # fmt: skip
def test_tables_of_another_version_are_refused_with_the_cure(
    tmp_path: Path, command: str, change: str, cure: str
) -> None:
    database = Database(f"sqlite:///{tmp_path}/shop.db")
    outrider(database, "schema apply")
    database.run(change)

    done = outrider(database, command)

    assert done.exit_code == 1
    assert "the tables are at version " in problem(done)
    assert problem(done).endswith(cure)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("INSERT INTO outbox_schema (version) VALUES (99)", "at version 99, .* upgrade outrider"),
        ("INSERT INTO outbox_schema (version) VALUES (1)", "at version 1, .* `outrider schema app"),
        ("DROP TABLE outbox_schema", "run `outrider schema apply`"),
    ],
)
async def test_relay_refuses_missing_tables_and_those_of_another_version(
    database: AsyncEngine, change: str, text: str
) -> None:
    await run(database, change)
    store = SqlOutboxStore(database)

    with pytest.raises(ConfigurationError, match=text):
        await store.open(lambda _: None)
    await store.close()


async def test_page_names_the_cure_when_the_tables_are_missing(database: AsyncEngine) -> None:
    await run(database, "DROP TABLE outbox")

    async with page_of(database) as page:
        answer = await page.get("/", headers=JSON)

    assert answer.status_code == 503
    assert "run `outrider schema apply`" in answer.json()["problem"]


def test_apply_tells_of_a_table_that_was_dropped(empty: Database) -> None:
    outrider(empty, "schema apply")
    empty.run("DROP TABLE outbox")

    done = outrider(empty, "schema apply")

    assert done.exit_code == 1
    assert "no step is missing, but table outbox is missing" in problem(done)


def test_second_outbox_is_told_to_name_its_own_inbox_table(empty: Database) -> None:
    outrider(empty, "schema apply")

    done = outrider(empty, "schema apply --table other")
    named = outrider(empty, "schema apply --table other --processed other_processed")

    assert done.exit_code == 1
    assert "--processed" in problem(done)
    assert "drop" not in problem(done)
    assert named.exit_code == 0


def test_status_is_headed_with_the_name_of_the_table(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/shop.db")
    outrider(database, "schema apply --table orders_outbox")

    assert outrider(database, "status --table orders_outbox").output.startswith("orders_outbox")


def test_dashboard_prints_the_port_that_it_was_given(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/shop.db")
    outrider(database, "schema apply")
    command = [sys.executable, "-m", "outrider", "dashboard", "--port", "0"]
    environment = {**os.environ, "DATABASE_URL": database.url, "PYTHONUNBUFFERED": "1"}

    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        answer = httpx.get(address, timeout=30)
        process.send_signal(signal.SIGINT)
        process.wait(30)

    assert answer.status_code == 200

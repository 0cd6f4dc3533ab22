"""`outrider schema`: the same steps from the shell, for people, programs and a DBA."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, make_url

from outrider.cli.app import app
from outrider.settings.masking import mask_password
from outrider.store.schema import migrate as schema
from outrider.testing.services import Services
from tests.support.databases import DIALECTS, Database, fresh, fresh_postgres, pipe

SECRET = "s3cr3t/+word"
LATEST = schema.LATEST


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        yield database


@pytest.fixture
def postgres(services: Services) -> Iterator[Database]:
    with fresh_postgres(services) as database:
        yield database


def outrider(*arguments: str, **environment: str) -> Result:
    settings = {"DATABASE_URL": "", "OUTBOX_TABLE": "", "OUTBOX_SCHEMA": ""} | environment
    return CliRunner().invoke(app, ["schema", *arguments], env=settings)


def facts(*arguments: str, **environment: str) -> Any:
    return json.loads(outrider(*arguments, "--json", **environment).output)


def test_tables_come_by_apply_and_status_says_so(database: Database) -> None:
    # given
    here = {"DATABASE_URL": database.url}
    if database.dialect == "postgresql":
        assert outrider("status", **here).output == f"outbox: version 0, latest {LATEST}\n"

    # when
    first, second = outrider("apply", "--to", "1", **here), outrider("apply", **here)

    # then
    assert (first.exit_code, first.output) == (0, "outbox: applied version 1.\n")
    assert second.output.startswith("outbox: applied version 2")
    assert outrider("apply", **here).output == "outbox: nothing to do.\n"
    assert facts("apply", **here) == {"applied": []}
    assert facts("status", **here) == {"current": LATEST, "latest": LATEST}
    assert outrider("check", **here).output == "outbox: all is well.\n"


def test_names_come_from_options_or_the_environment(database: Database) -> None:
    # given
    options = ("--database", database.url, "--prefix", "shop_")

    # when
    applied = outrider("apply", *options, OUTBOX_TABLE="order", OUTBOX_PROCESSED="done")

    # then
    assert applied.output.startswith("order: applied version 1")
    assert set(database.picture()) == {
        *("order", "done", "shop_actions", "shop_lanes", "shop_relays", "shop_schema", "shop_sinks")
    }


def test_check_lists_problems_and_exits_with_1(database: Database) -> None:
    # given
    here = {"DATABASE_URL": database.url}
    outrider("apply", **here)
    database.run("DROP INDEX outbox_failed")

    # when
    checked = outrider("check", **here)

    # then
    assert checked.exit_code == 1
    assert checked.output.startswith("index outbox_failed is missing; CREATE INDEX")
    assert facts("check", **here) == {"problems": [checked.output.strip()]}


def test_printed_sql_makes_what_apply_makes(services: Services, postgres: Database) -> None:
    # given
    printed = outrider("print", "--schema", "by_hand")
    outrider("apply", "--schema", "by_apply", DATABASE_URL=postgres.url)

    # when
    pipe(services, postgres, printed.output)

    # then
    assert postgres.picture("by_hand") == postgres.picture("by_apply")
    assert postgres.picture("by_hand")
    assert outrider("check", DATABASE_URL=postgres.url, OUTBOX_SCHEMA="by_hand").exit_code == 0

    # when
    pipe(services, postgres, outrider("print", "--schema=by_hand", f"--from={LATEST}").output)
    pipe(
        services,
        postgres,
        outrider("print", "--schema=by_hand", f"--from={LATEST}", "--to=0").output,
    )

    # then
    assert postgres.picture("by_hand") == {}


def test_printed_sql_makes_what_apply_makes_in_sqlite(tmp_path: Path) -> None:
    # given
    applied, by_hand = (Database(f"sqlite:///{tmp_path / name}") for name in ("a.db", "b.db"))
    outrider("apply", DATABASE_URL=applied.url)
    steps = [
        outrider("print", "--dialect", "sqlite", "--to", "1").output,
        outrider("print", "--dialect", "sqlite", "--from", "1").output,
    ]

    # when
    connection = create_engine(by_hand.url).raw_connection()
    for step in steps:
        connection.driver_connection.executescript(step)  # type: ignore[union-attr]
    connection.close()

    # then
    assert by_hand.picture() == applied.picture()
    assert outrider("check", DATABASE_URL=by_hand.url).exit_code == 0


def test_printed_steps_are_all_or_nothing(services: Services, postgres: Database) -> None:
    # given
    postgres.run("CREATE TABLE outbox_failed (x integer)")
    server = services.postgres

    # when: psql goes on after an error unless told otherwise
    psql = (server.programs / "psql", "-Xq", "-d", postgres.url)
    server.run(*psql, stdin=outrider("print").output)

    # then
    assert set(postgres.picture()) == {"outbox_failed"}


def test_print_in_json_has_the_bare_statements() -> None:
    assert facts("print") == {"statements": schema.statements("postgresql")}
    assert facts("print", "--dialect=sqlite", "--from=1") == {
        "statements": schema.statements("sqlite", since=1)
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["apply"], "Missing option '--database'"),
        (["apply", "--database", f"mysql://u:{SECRET}@h/d"], "mysql: use postgresql://"),
        (["apply", "--database", f"{SECRET} no url"], "this is not a database URL"),
        (["apply", "--database", f"postgresql://u:{SECRET}@h:port/d"], "this is not a database"),
        (["print", "--table", 'out"box'], "--table: table: use 1 to 63 lower-case"),
        (["print", "--to", "99"], "99 is not in the range"),
        (["print", "--dialect", "sqlite", "--schema", "app"], "SQLite has none"),
        (["print", "--dialect", "sqlite", "--roles"], "sqlite has no roles"),
        (["migrate"], "No such command"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], complaint: str) -> None:
    result = outrider(*arguments)

    assert result.exit_code == 2
    assert complaint in result.output
    assert SECRET not in result.output


def test_unreachable_database_exits_with_3(services: Services, tmp_path: Path) -> None:
    nobody = "postgresql://app:s3cr3t%2F%2Bword@127.0.0.1:1/shop"
    stranger = make_url(services.postgres.url).set(password=SECRET)
    for url in (
        nobody,
        nobody.replace("postgresql:", "postgresql+psycopg:"),
        f"postgresql://127.0.0.1:1/shop?user=app&password={SECRET}",
        stranger.render_as_string(hide_password=False),
        f"sqlite:///{tmp_path}/no/such/folder/outbox.db",
    ):
        for command in ("apply", "status", "check"):
            result = outrider(command, DATABASE_URL=url)

            assert result.exit_code == 3, result.output
            assert result.output.startswith("Error: ")
            assert result.output.count("\n") == 1
            assert "s3cr3t" not in result.output
            assert "?" not in result.output


@pytest.mark.parametrize("url", ["postgresql://app:{}@db/shop", "postgresql://db/shop?password={}"])
def test_password_is_masked_in_whatever_a_driver_says(url: str) -> None:
    quoted = quote(SECRET, safe="")

    said = mask_password(f"refused {SECRET} and {quoted}", make_url(url.format(quoted)))

    assert said == "refused *** and ***"


def test_password_that_is_also_a_name_is_masked_in_its_place_only() -> None:
    url = "postgresql://postgres:postgres@127.0.0.1:1/postgres"

    result = outrider("status", DATABASE_URL=url)
    said = mask_password(f'refused for user "postgres" of {url}', make_url(url))

    assert result.exit_code == 3
    shown = "postgresql+asyncpg://postgres:***@127.0.0.1:1/postgres"
    assert result.output.startswith(f"Error: cannot connect to {shown}: ")
    assert said == f'refused for user "postgres" of {url.replace(":postgres@", ":***@")}'


def test_looking_makes_no_sqlite_file(tmp_path: Path) -> None:
    result = outrider("status", DATABASE_URL=f"sqlite:///{tmp_path}/misspelt.db")

    assert (result.exit_code, list(tmp_path.iterdir())) == (3, [])
    assert "misspelt.db: unable to open" in result.output


def test_hosters_spelling_of_the_url_is_understood(postgres: Database) -> None:
    url = postgres.url.replace("postgresql:", "postgres:") + "?sslmode=prefer"

    assert facts("apply", DATABASE_URL=url) == {"applied": list(range(1, LATEST + 1))}


def test_refusal_of_the_database_is_one_line(postgres: Database) -> None:
    # given
    postgres.run("CREATE TABLE outbox_failed (x integer)")

    # when
    result = outrider("apply", DATABASE_URL=postgres.url)

    # then
    assert result.exit_code == 1
    assert result.output == 'Error: relation "outbox_failed" already exists\n'


def test_help_shows_an_example_for_each_command() -> None:
    for command in ("apply", "print", "status", "check"):
        assert f"\n  outrider schema {command} -" in outrider(command, "--help").output


@pytest.mark.parametrize("library", ["click", "rich"])
def test_missing_library_is_named_with_the_extra(library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; import outrider.cli; "
        "sys.argv = ['outrider', '--help']; outrider.cli.main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == f"outrider: {library} is missing: pip install 'outrider[cli]'\n"

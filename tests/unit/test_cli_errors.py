"""Errors of the command line that need no server: one sentence with the cure, and the exit code."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outrider import ConfigurationError, OutboxRelay, open_engine
from outrider.cli.app import app
from outrider.cli.processes import load_services
from tests.support.canary import CANARY

PROGRAM = """
from fastapi import FastAPI

app, number = FastAPI(), 7

def needs(argument): ...

def gives_text(): return "text"
"""


def outrider(*arguments: str, **environment: str) -> Result:
    done = CliRunner().invoke(app, arguments, env=environment)
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize(
    ("name", "kind"),
    [("app", "FastAPI"), ("number", "int"), ("needs", "function"), ("gives_text", "str")],
)
async def test_what_is_no_relay_is_refused_with_what_to_name_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    (tmp_path / f"shop_{name}.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError) as refused:
        async with load_services(f"shop_{name}:{name}", OutboxRelay):
            pass

    assert f"gives a {kind}, not an OutboxRelay; name an OutboxRelay, a list" in str(refused.value)


def test_columns_of_config_stand_apart_and_below_each_other() -> None:
    url = f"postgresql://app@{'very-' * 12}long.example/shop"

    lines = outrider("config", DATABASE_URL=url).output.splitlines()

    columns = [re.split(" {2,}", line) for line in lines]
    assert {len(parts) for parts in columns} == {3}
    starts = {line.rindex(parts[2]) for line, parts in zip(lines, columns, strict=True)}
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, ("poll_interval", "5", "default")),
        ({"OUTBOX_POLL_INTERVAL": "2"}, ("poll_interval", "2", "OUTBOX_POLL_INTERVAL")),
        (
            {"OUTBOX_POLL_INTERVAL": "2", "OUTBOX_POLL_INTERVAL_MS": "30"},
            ("poll_interval_ms", "30", "OUTBOX_POLL_INTERVAL_MS"),
        ),
        ({"DATABASE_URL": "sqlite:///x.db"}, ("poll_interval_ms", "100", "default")),
    ],
)
def test_config_lists_the_poll_interval_that_counts(
    environment: dict[str, str], shown: tuple[str, str, str]
) -> None:
    found = json.loads(outrider("config", "--json", **environment).stdout)

    polls = [(name, *each.values()) for name, each in found.items() if "poll" in name]
    assert polls == [shown]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["config", "--batch-size", "9" * 20], "a whole number up to 9,223,372,036,854,775,807"),
        (["config", "--table", f"postgresql://u:{CANARY}@h"], "--table: table: use 1 to 63"),
        (["retry", "--since", "yesterday"], "write a time such as 2026-01-31T12:00Z"),
        (["retry", "4711"], "write an id such as 0195d0a2-"),
        (["status", "--database", "postgresql://h/d?sslkey=x"], "asyncpg has no parameter sslkey"),
    ],
)
def test_value_that_cannot_work_is_refused_with_what_to_write(
    arguments: list[str], text: str
) -> None:
    done = outrider(*arguments, DATABASE_URL="sqlite:///x.db")

    assert done.exit_code == 2
    assert text in done.output
    assert CANARY not in done.output


@pytest.mark.parametrize("topology", ["no_such_module:x", "json:loads", "json:nothing"])
def test_wrong_topology_is_told_with_its_flag(topology: str) -> None:
    flags = ("--to", "amqp://localhost", "--rabbitmq-topology", topology)

    done = outrider("doctor", *flags, "--json", DATABASE_URL="")

    [broker] = [
        check for check in json.loads(done.stdout)["checks"] if check["subject"] == "broker"
    ]
    assert broker["text"].startswith("--rabbitmq-topology: ")


@pytest.mark.parametrize("library", ["jinja2", "starlette", "uvicorn"])
def test_library_that_the_dashboard_misses_is_named(library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; import outrider.cli; "
        "sys.argv = ['outrider', 'dashboard', '--database', 'sqlite:///x.db']; outrider.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert f"Error: {library} is missing: pip install 'outrider[dashboard]'" in done.stderr


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [("postgresql://h/shop", "asyncpg", "postgres"), ("sqlite:///shop.db", "aiosqlite", "sqlite")],
)
def test_missing_driver_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)

    with pytest.raises(ConfigurationError, match=rf"{driver} is missing: pip install .*{extra}\]"):
        open_engine(url)


def test_doctor_tells_what_to_install_and_not_whether_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    done = outrider("doctor", "--json", DATABASE_URL="postgresql://h/shop")

    assert done.exit_code == 1
    assert json.loads(done.output)["checks"][0]["cure"] == "do what it says"


def test_database_out_of_reach_ends_the_doctor_with_3() -> None:
    assert outrider("doctor", DATABASE_URL="postgresql://127.0.0.1:1/shop").exit_code == 3


@pytest.mark.parametrize("command", ["relay", "status"])
def test_command_without_a_database_is_wrong_usage(command: str) -> None:
    assert outrider(command, DATABASE_URL="").exit_code == 2


def test_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.cli.commands.dashboard.run", interrupt)
    done = outrider("dashboard", "--port", "0", DATABASE_URL="sqlite:///shop.db")

    assert done.exit_code == 130
    assert "Aborted" not in done.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_full_disk_below_the_output_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "outrider", "config"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.stderr == "Error: cannot write the output: No space left on device\n"
    assert done.returncode == 1


def test_port_in_use_is_told_with_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = outrider("dashboard", "--port", str(port), DATABASE_URL="sqlite:///x.db")

    assert done.exit_code == 1
    assert f"--port {port}: Address already in use; choose another" in done.output


def test_printed_sql_can_join_the_transaction_of_its_caller() -> None:
    own, joining = outrider("schema", "print"), outrider("schema", "print", "--no-transaction")

    assert "--no-transaction" in own.output.splitlines()[0]
    assert own.output.splitlines()[1] == "BEGIN;"
    assert own.output.endswith("COMMIT;\n")
    assert "BEGIN" not in joining.output
    assert "COMMIT" not in joining.output
    assert "CREATE TABLE" in joining.output


def test_flag_beside_an_application_is_refused_by_name() -> None:
    done = outrider("relay", "shop:relay", "--max-retries", "3", "--after-failure", "park")

    assert done.exit_code == 2
    assert "--after-failure, --max-retries: no effect, since shop:relay makes" in done.output


@pytest.mark.parametrize("command", ["relay", "consume"])
def test_variable_without_effect_beside_an_application_is_told_by_name(command: str) -> None:
    shown = {"OUTBOX_ERROR_DETAIL": "message", "OUTRIDER_QUIET": "true"}

    output = outrider(command, "no_such_shop:relay", **shown).output

    assert "warning: OUTBOX_ERROR_DETAIL: no effect by itself, since no_such_shop:relay" in output
    assert "QUIET" not in output


def test_application_alone_is_not_warned_of() -> None:
    database = "postgresql://app@localhost/shop"
    assert "no effect" not in outrider("relay", "no_such_shop:relay", DATABASE_URL=database).output

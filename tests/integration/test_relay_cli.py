"""`outrider relay` and `outrider config` as people call them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.testing.services import Services
from tests.support.canary import CANARY
from tests.support.databases import Database, create_database, insert
from tests.support.http_client import fetch, free_port
from tests.support.until import wait_until

PATHS = ("livez", "readyz", "metrics", "other")
SOMEWHERE = ("--database", "sqlite:///x.db", "--to", "amqp://h")
NAMES = {"table": "orders", "prefix": "shop_", "processed": "done", "schema": "shop"}
NAMES |= {"channel": "shop_events"}


def outrider(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outrider", *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_config_shows_where_each_setting_comes_from_and_no_password() -> None:
    done = outrider(
        "config",
        "--batch-size",
        "7",
        "--json",
        DATABASE_URL=f"postgresql://app:{CANARY}@db/shop",
        RABBITMQ_URL=f"amqp://app:{CANARY}@mq",
        OUTBOX_LEASE="3",
    )

    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["batch_size"] == {"value": "7", "source": "--batch-size"}
    assert found["lease"] == {"value": "3", "source": "OUTBOX_LEASE"}
    assert found["database"]["value"] == "postgresql://app:***@db/shop"
    assert CANARY not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--lease", "soon"], "--lease: must be a number of seconds", 2),
        ([], "no database: give --database or DATABASE_URL", 2),
        (["--database", "sqlite:///x.db"], "no broker: give --to, OUTBOX_TO or RABBITMQ_URL", 1),
        (["--database", "oracle://x"], "use postgresql:// or sqlite:///", 2),
        (
            ["--lease", "0", "--batch-size", "0"],
            "--batch-size: batch_size must be at least 1; --lease: lease must be at least 1 second",
            2,
        ),
        (["--rabbitmq-topology", "messaging", *SOMEWHERE], "write it as module:name", 1),
        (
            ["--database", "sqlite:///x.db", "--to", f"http://u:{CANARY}@h"],
            "amqp",
            1,
        ),
        (["--database", "sqlite:///x.db", "--to", f"shop:{CANARY}@host"], "--to: begin it with", 1),
    ],
)
def test_wrong_settings_are_one_clear_line(arguments: list[str], message: str, code: int) -> None:
    done = outrider("relay", *arguments)

    assert done.returncode == code
    assert message in done.stderr.replace("…", "")
    assert "Traceback" not in done.stderr
    assert CANARY not in done.stderr


def flags(settings: dict[str, str]) -> list[str]:
    return [f"--{name}={text}" for name, text in settings.items()]


def variables(settings: dict[str, str]) -> dict[str, str]:
    return {f"OUTBOX_{name.upper()}": text for name, text in settings.items()}


@contextmanager
def running(log: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A relay that ends at the end of the block at the latest."""
    with log.open("w") as output:
        relay = subprocess.Popen(
            [sys.executable, "-m", "outrider", "relay", *arguments],
            env={**os.environ, **environment},
            stderr=output,
        )
    try:
        yield relay
    finally:
        relay.terminate()
        relay.wait(30)


@pytest.mark.parametrize("by", ["flags", "environment"])
def test_tables_with_other_names_are_served_by_a_relay_with_the_same_names(
    services: Services, tmp_path: Path, by: str
) -> None:
    # given
    named = flags(NAMES) if by == "flags" else []
    environment = {"DATABASE_URL": create_database(services), "OUTBOX_TO": services.redis.url}
    environment |= variables(NAMES) if by == "environment" else {}
    environment |= {"OUTBOX_DESTINATION": f"shop-{by}"}
    assert outrider("schema", "apply", *named, **environment).returncode == 0
    database, table = Database(environment["DATABASE_URL"]), "shop.orders"
    database.run(insert(table))

    # when
    with running(tmp_path / "log", *named, **environment):
        is_published = wait_until(lambda: statuses(database, table) == ["published"], within=30)
        told = json.loads(outrider("status", "--json", *named, **environment).stdout)
        checked = outrider("doctor", *named, **environment)

    # then
    assert is_published, (tmp_path / "log").read_text()
    assert [relay["sink"] for relay in told["relays"]] == ["default"]
    assert checked.returncode == 0, checked.stdout


def statuses(database: Database, table: str = "outbox") -> list[str]:
    return [row[0] for row in database.run(f"SELECT status FROM {table}")]  # noqa: S608


@pytest.mark.parametrize("arguments", [(), ("--retention-days", "-1")])
def test_negative_retention_deletes_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    # given
    database = Database(f"sqlite:///{tmp_path}/shop.db")
    assert outrider("schema", "apply", "--database", database.url).returncode == 0
    database.run(
        insert(),
        "UPDATE outbox SET status = 'published', delivery_number = 1, published_at = '2024-05-01'",
    )
    environment = {"DATABASE_URL": database.url, "OUTBOX_TO": "redis://127.0.0.1:1"}
    environment |= {} if arguments else {"OUTBOX_RETENTION_DAYS": "-1"}

    # when
    done = outrider("relay", *arguments, **environment)

    # then
    source = "--retention-days" if arguments else "OUTBOX_RETENTION_DAYS"
    assert done.returncode == 2
    assert f"{source}: retention must be at least 0" in done.stderr
    assert statuses(database) == ["published"]


NEW = {"loops": "3", "batch_bytes": "4096", "publish_timeout": "7.5", "max_crashes": "9"}
NEW |= {"name": "here", **NAMES}


@pytest.mark.parametrize("by", ["flags", "environment"])
def test_config_shows_settings_however_they_are_given(by: str) -> None:
    by_flag = flags({name.replace("_", "-"): text for name, text in NEW.items()})

    done = (
        outrider("config", "--json", *by_flag)
        if by == "flags"
        else outrider("config", "--json", **variables(NEW))
    )

    found = json.loads(done.stdout)
    assert {name: found[name]["value"] for name in NEW} == NEW
    sources = {found[name]["source"] for name in NEW}
    assert all(source.startswith("--" if by == "flags" else "OUTBOX_") for source in sources)


@pytest.mark.parametrize("command", ["relay", "config", "doctor"])
def test_misspelt_variable_is_warned_of_once_and_never_an_error(command: str) -> None:
    settings = {"OUTBOX_BATCHSIZE": CANARY, "OUTBOX_BATCH_SIZE": "7"}

    done, without = outrider(command, **settings), outrider(command, OUTBOX_BATCH_SIZE="7")

    warning = "warning: OUTBOX_BATCHSIZE is not a setting; did you mean OUTBOX_BATCH_SIZE?\n"
    assert done.stderr == warning + without.stderr
    assert (done.stdout, done.returncode) == (without.stdout, without.returncode)


def test_missing_tables_are_named_with_their_cure(services: Services) -> None:
    url = create_database(services)

    done = outrider("relay", "--database", url, "--to", services.rabbitmq.url)

    assert done.returncode == 1
    assert "outrider schema" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("processes", "arguments", "environment"),
    [
        (1, (), {}),
        (2, ("--processes", "2"), {"OUTBOX_NOTHING": "1"}),
        (2, (), {"OUTRIDER_PROCESSES": "2"}),
    ],
)
def test_relay_says_what_is_connected_and_ends_on_sigterm(
    services: Services,
    tmp_path: Path,
    processes: int,
    arguments: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    url = create_database(services)
    assert outrider("schema", "apply", "--database", url).returncode == 0
    environment |= {"DATABASE_URL": url, "RABBITMQ_URL": services.rabbitmq.url}
    log = tmp_path / "log"
    with running(log, *arguments, **environment) as relay:
        deadline = time.monotonic() + 30
        while log.read_text().count("started") < processes:
            assert time.monotonic() < deadline, log.read_text()
            assert relay.poll() is None, log.read_text()
            time.sleep(0.05)

        relay.send_signal(signal.SIGTERM)

        assert relay.wait(30) == 0, log.read_text()
    text = log.read_text()
    assert text.count("stopped after 0 events, 0 left") == processes
    assert text.count("OUTBOX_NOTHING is not a setting") == ("OUTBOX_NOTHING" in environment)
    assert "(notified)" in text
    for secret in (services.postgres.password, services.rabbitmq.password):
        assert secret not in text


def test_health_port_tells_life_readiness_and_numbers(services: Services, tmp_path: Path) -> None:
    url = create_database(services)
    assert outrider("schema", "apply", "--database", url).returncode == 0
    port, word = free_port(), tmp_path / "notify"
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(word))
    systemd.settimeout(30)
    settings = {
        "DATABASE_URL": url,
        "RABBITMQ_URL": services.rabbitmq.url,
        "OUTRIDER_HEALTH": f"127.0.0.1:{port}",
        "NOTIFY_SOCKET": str(word),
    }
    with (tmp_path / "log").open("w") as output:
        relay = subprocess.Popen(
            [sys.executable, "-m", "outrider", "relay"],
            env={**os.environ, **settings},
            stderr=output,
        )
    with systemd:
        assert systemd.recv(100) == b"READY=1"
        answers = {path: fetch(f"http://127.0.0.1:{port}/{path}") for path in PATHS}
        relay.send_signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
    assert relay.wait(30) == 0

    assert [code for code, _ in answers.values()] == [200, 200, 200, 404]
    assert json.loads(answers["readyz"][1]) == {"status": "ready", "problems": []}
    assert 'outbox_backlog_events{status="pending"} 0.0' in answers["metrics"][1]
    assert services.postgres.password not in str(answers)


@pytest.mark.parametrize(
    ("health", "code"), [("nowhere", 2), ("127.0.0.1:no", 2), ("203.0.113.1:9", 1)]
)
def test_wrong_health_address_is_one_clear_line(health: str, code: int, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/x.db"

    done = outrider("relay", "--database", database, "--to", "amqp://h", "--health", health)

    assert done.returncode == code
    assert "health" in done.stderr
    assert "Traceback" not in done.stderr

"""`outrider relay` and `outrider config` as people call them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from outrider.testing.services import Services
from tests.support.canary import CANARY
from tests.support.databases import create_database

PATHS = ("livez", "readyz", "metrics", "other")


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
        (["--lease", "soon"], "--lease: 'soon' is not what it should be", 2),
        ([], "no database: give --database or DATABASE_URL", 1),
        (["--database", "sqlite:///x.db"], "no broker: give --to, OUTBOX_TO or RABBITMQ_URL", 1),
        (["--database", "oracle://x"], "use postgresql:// or sqlite:///", 2),
        (
            ["--lease", "0", "--database", "sqlite:///x.db", "--to", "amqp://h"],
            "lease must be at least 1 second",
            1,
        ),
        (
            ["--database", "sqlite:///x.db", "--to", f"http://u:{CANARY}@h"],
            "amqp",
            1,
        ),
    ],
)
def test_wrong_settings_are_one_clear_line(arguments: list[str], message: str, code: int) -> None:
    done = outrider("relay", *arguments)

    assert done.returncode == code
    assert message in done.stderr.replace("…", "")
    assert "Traceback" not in done.stderr
    assert CANARY not in done.stderr


def test_missing_tables_are_named_with_their_cure(services: Services) -> None:
    url = create_database(services)

    done = outrider("relay", "--database", url, "--to", services.rabbitmq.url)

    assert done.returncode == 1
    assert "outrider schema" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_relay_says_what_is_connected_and_ends_on_sigterm(
    services: Services, tmp_path: Path, workers: str
) -> None:
    url = create_database(services)
    assert outrider("schema", "apply", "--database", url).returncode == 0
    log = tmp_path / "log"
    with log.open("w") as output:
        relay = subprocess.Popen(
            [sys.executable, "-m", "outrider", "relay", "--processes", workers],
            env={**os.environ, "DATABASE_URL": url, "RABBITMQ_URL": services.rabbitmq.url},
            stderr=output,
        )
    deadline = time.monotonic() + 30
    while log.read_text().count("started") < int(workers):
        assert time.monotonic() < deadline, log.read_text()
        assert relay.poll() is None, log.read_text()
        time.sleep(0.05)

    relay.send_signal(signal.SIGTERM)

    assert relay.wait(30) == 0, log.read_text()
    text = log.read_text()
    assert text.count("stopped after 0 events, 0 left") == int(workers)
    assert "(notified)" in text
    for secret in (services.postgres.password, services.rabbitmq.password):
        assert secret not in text


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


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


@pytest.mark.parametrize("health", ["nowhere", "127.0.0.1:no", "203.0.113.1:9"])
def test_wrong_health_address_is_one_clear_line(health: str, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/x.db"

    done = outrider("relay", "--database", database, "--to", "amqp://h", "--health", health)

    assert done.returncode == 1
    assert "health" in done.stderr
    assert "Traceback" not in done.stderr

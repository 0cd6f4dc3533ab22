"""How the process of a relay or consumer ends: in time, with one line and the promised code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import make_url

from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Services
from tests.support.canary import CANARY
from tests.support.databases import Database, insert
from tests.support.http_client import fetch, free_port
from tests.support.until import wait_until

NOBODY_LISTENS = "redis://127.0.0.1:1"
APPLICATION = """
import asyncio, time
from contextlib import suppress
from datetime import timedelta

from outrider import InProcessPublisher, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.store.engines import open_engine


class Publisher:
    async def open(self): pass

    async def close(self): pass

    async def publish(self, envelope):
        await self.publish_all([envelope])

    async def publish_all(self, envelopes):
        print("publishing", flush=True)
        while {ignores_cancellation}:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        await asyncio.to_thread(time.sleep, 3600)


config = RelayConfig(grace=timedelta(milliseconds=100), lease=timedelta(seconds=1))
relay = OutboxRelay(SqlOutboxStore(open_engine("{database}")), Publisher(), config)
"""


@contextmanager
def running(
    log: Path, *arguments: str, folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`outrider` with these arguments; it ends at the end of the block at the latest."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "outrider", *arguments],
            env={**os.environ},
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """A SQLite file with tables."""
    database = Database(f"sqlite:///{tmp_path}/shop.db")
    OutboxTables().metadata.create_all(database.engine())
    return database


def has(log: Path, text: str) -> bool:
    return wait_until(lambda: text in log.read_text(), within=30)


@pytest.mark.fault("D17")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"password": CANARY}, "password authentication failed"),
        ({"database": "absent"}, 'database "absent" does not exist'),
        ({"port": 1}, "Errno 111"),
    ],
    ids=["wrong password", "absent database", "absent server"],
)
def test_sigterm_ends_a_relay_that_never_reached_its_database_and_said_why(
    services: Services, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    # given
    url, log = make_url(services.postgres.url).set(**change), tmp_path / "log"
    changed = url.render_as_string(hide_password=False)

    # when
    with running(log, "relay", "--database", changed, "--to", NOBODY_LISTENS) as relay:
        assert has(log, "database unavailable, waiting"), log.read_text()
        relay.send_signal(signal.SIGTERM)

        # then
        assert relay.wait(30) == 0, log.read_text()
    lines = log.read_text().splitlines()
    assert "stopped after 0 events, an unknown number left" in lines[-1]
    assert len(lines) == 2, lines
    where = f"cannot connect to postgresql+asyncpg://outrider:***@{url.host}:{url.port}/"
    assert where in lines[0], lines
    assert reason in lines[0], lines
    assert CANARY not in log.read_text()


@pytest.mark.fault("D19")
def test_dropped_table_ends_a_running_relay_with_the_cure(
    database: Database, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    to = ("--to", NOBODY_LISTENS, "--poll-interval", "0.05")

    with running(log, "relay", "--database", database.url, *to) as relay:
        assert has(log, "started"), log.read_text()
        database.run("DROP TABLE outbox")

        assert relay.wait(30) == 1
    text = log.read_text()
    assert "Error: no such table: outbox; run `outrider schema apply`" in text
    assert "CRITICAL outrider.service OutboxRelay has ended, restart it: no such table" in text
    assert "Traceback" not in text


@pytest.mark.fault("E12")
@pytest.mark.parametrize(("ignores_cancellation", "code"), [(True, 1), (False, 0)])
def test_sigterm_ends_the_process_although_a_task_or_a_thread_does_not_end(
    database: Database, tmp_path: Path, ignores_cancellation: bool, code: int
) -> None:
    # given
    log, application = tmp_path / "log", tmp_path / "shop_app.py"
    application.write_text(
        APPLICATION.format(ignores_cancellation=ignores_cancellation, database=database.url)
    )
    database.run(insert())

    # when
    with running(log, "relay", "shop_app:relay", folder=tmp_path) as relay:
        assert has(log, "publishing"), log.read_text()
        relay.send_signal(signal.SIGTERM)

        # then
        assert relay.wait(30) == code, log.read_text()
    text = log.read_text()
    assert ("the publisher has ignored its cancellation" in text) is ignores_cancellation
    assert "a task or a thread has not ended within 2 s, and is given up" in text
    assert "Traceback" not in text
    assert database.run("SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL") == [(0,)]


def test_process_of_several_that_dies_takes_the_others_along(
    database: Database, tmp_path: Path
) -> None:
    # given
    log = tmp_path / "log"
    several = ("--to", NOBODY_LISTENS, "--processes", "2")
    with running(log, "relay", "--database", database.url, *several) as parent:
        assert wait_until(lambda: log.read_text().count("started") == 2, within=60), log.read_text()
        children = psutil.Process(parent.pid).children()

        # when
        children[0].kill()

        # then
        assert parent.wait(30) == 128 + signal.SIGKILL, log.read_text()
        assert not any(child.is_running() for child in children)
    text = log.read_text()
    assert "one of 2 processes has ended with code -9; the others are stopped" in text
    assert text.count("stopped after 0 events") == 1


def test_health_port_tells_of_a_sink_that_is_away_before_anything_is_published(
    database: Database, tmp_path: Path
) -> None:
    # given
    log, port = tmp_path / "log", free_port()
    health = f"127.0.0.1:{port}"

    # when
    to = ("--to", NOBODY_LISTENS, "--health", health)
    with running(log, "relay", "--database", database.url, *to) as relay:
        assert has(log, "sink unavailable, waiting"), log.read_text()
        answers = {path: fetch(f"http://{health}/{path}") for path in ("livez", "readyz")}
        metrics = fetch(f"http://{health}/metrics")[1]
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(30) == 0

    # then
    assert [code for code, _ in answers.values()] == [200, 503]
    assert json.loads(answers["readyz"][1])["problems"] == ["sink default is unavailable"]
    assert 'outbox_sink_up{sink="default"} 0.0' in metrics

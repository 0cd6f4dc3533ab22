"""Atomicity: whenever a producer dies, its business rows and its events match one to one."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url, text

from outrider.testing.services import Services
from tests.support.processes.producer_process import DRIVERS, UNDONE, Base, outbox
from tests.support.until import wait_until

KILLS = 300 if os.environ.get("OUTRIDER_FULL") else 25
SEED = int(os.environ.get("OUTRIDER_SEED") or random.SystemRandom().randrange(2**32))
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.faults


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    services: Services = request.getfixturevalue("services")
    database = f"atomicity_{uuid4().hex}"
    services.postgres.psql(f"create database {database}")
    return make_url(services.postgres.url).set(database=database).render_as_string(False)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    target = make_url(url)
    # No connection stays open, so that SQLite's next one has to recover what the dead one left.
    driver = DRIVERS[target.get_backend_name()][1]
    engine = create_engine(target.set(drivername=driver), poolclass=NullPool)
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        Base.metadata.create_all(connection)
        outbox.tables.metadata.create_all(connection)
    yield engine
    engine.dispose()


@dataclass
class Victim:
    """A child process, what it announced, and when."""

    name: str
    pid: int
    pipe: int
    told: list[list[str]] = field(default_factory=list)
    text: bytes = b""
    ended: bool = False

    def listen(self, seconds: float) -> None:
        """Read what it tells, for at most this long."""
        if not self.ended and select.select([self.pipe], [], [], seconds)[0]:
            heard = os.read(self.pipe, 65536)
            self.ended = not heard
            *lines, self.text = (self.text + heard).split(b"\n")
            self.told += [line.decode().split() for line in lines]

    def announced(self, what: str) -> list[str]:
        return [order for kind, order in self.told if kind == what]

    def killed_after(self, announcements: int, what: str, delay: float) -> Victim:
        """Kill it that long after it has told this so many times."""
        while len(self.announced(what)) < announcements and not self.ended:
            self.listen(60)
        aim = time.perf_counter() + delay
        while time.perf_counter() < aim:
            pass
        assert not self.ended, f"{self.name} ended by itself"
        os.kill(self.pid, signal.SIGKILL)
        while not self.ended:
            self.listen(60)
        os.close(self.pipe)
        return self

    @property
    def in_doubt(self) -> str | None:
        """The order whose commit was under way, if there was one."""
        kind, order = self.told[-1]
        return None if kind == "done" or order.endswith(UNDONE) else order


class Template:
    """A process that has everything imported and forks victims."""

    def __init__(self, url: str, errors: Path) -> None:
        self.control, theirs = socket.socketpair()
        module = "tests.support.processes.producer_process"
        command = [sys.executable, "-W", "error", "-m", module, str(theirs.fileno()), url]
        with theirs, errors.open("w") as stderr:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stderr=stderr, pass_fds=[theirs.fileno()]
            )

    def fork(self, name: str, seed: int) -> Victim:
        ours, theirs = os.pipe()
        socket.send_fds(self.control, [f"{name} {seed}".encode()], [theirs])
        os.close(theirs)
        return Victim(name, int(self.control.recv(64)), ours)

    def close(self) -> None:
        self.control.close()
        self.process.wait(60)


@dataclass
class Rows:
    orders: set[str]
    events: list[str]

    @classmethod
    def of(cls, engine: Engine) -> Rows:
        with engine.connect() as connection:
            return cls(
                set(connection.scalars(text("SELECT id FROM orders"))),
                list(connection.scalars(text("SELECT aggregate_id FROM outbox ORDER BY position"))),
            )


def wait_until_the_dead_are_gone(engine: Engine) -> None:
    """A backend finishes the commit it was sent, although nobody waits for the answer."""
    if engine.dialect.name == "postgresql":
        others = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            assert wait_until(lambda: connection.scalar(others) == 0, 60)


def kill_producers(template: Template, engine: Engine) -> tuple[list[Victim], list[str], list[str]]:
    """Kill as often as asked for, and on until a commit was hit before and after it took effect."""
    chance = random.Random(SEED)
    victims: list[Victim] = []
    absent: list[str] = []
    present: list[str] = []
    while len(victims) < KILLS or (not (absent and present) and len(victims) < 10 * KILLS):
        victim = template.fork(f"v{len(victims)}", chance.randrange(2**32))
        aim, longest = chance.choice([("about", 0.003), ("committing", 0.001)])
        victims.append(victim.killed_after(chance.randint(1, 12), aim, chance.uniform(0, longest)))
        if order := victim.in_doubt:
            wait_until_the_dead_are_gone(engine)
            (present if order in Rows.of(engine).orders else absent).append(order)
    return victims, absent, present


@pytest.mark.fault("D9", "D20")
def test_business_rows_and_events_match_whenever_the_producer_is_killed(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    # given
    print(seed := f"OUTRIDER_SEED={SEED}")
    errors = tmp_path / "errors"

    # when
    with closing(Template(url, errors)) as template:
        victims, absent, present = kill_producers(template, engine)
    wait_until_the_dead_are_gone(engine)
    rows = Rows.of(engine)

    # then
    print(f"{len(victims)} kills, {len(absent)} before the commit, {len(present)} after it")
    acknowledged = {order for victim in victims for order in victim.announced("done")}
    assert errors.read_text() == "", seed
    assert sorted(rows.events) == sorted(rows.orders), seed
    assert not {order for order in rows.orders if order.endswith(UNDONE)}, seed
    assert rows.orders >= {order for order in acknowledged if not order.endswith(UNDONE)}, seed
    assert absent, f"no kill came before a commit took effect: {seed}"
    assert present, f"no kill came between a commit and its end: {seed}"

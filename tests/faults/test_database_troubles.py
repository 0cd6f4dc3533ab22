"""A database that lets a relay do nothing, has no room, was restored, or lost its last commits."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import (
    ConfigurationError,
    DomainEvent,
    InMemoryEventBus,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
    create_all,
)
from outrider import signals as s
from outrider.store.engines import open_engine
from outrider.store.schema import migrate as schema
from outrider.testing.services import Postgres, Services
from tests.support.databases import create_database
from tests.support.faults.flow import flowing
from tests.support.faults.scoreboard import Scoreboard
from tests.support.until import until

CONFIG = RelayConfig(poll_interval=timedelta(milliseconds=200), lease=timedelta(seconds=5))
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"

pytestmark = pytest.mark.faults


@pytest.fixture
def server(services: Services) -> Iterator[Postgres]:
    server = services.another(Postgres)
    yield server
    server.stop()


class Relaying:
    """A relay, what it brought and what it said."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.bus, self.signals = InMemoryEventBus(), list[s.Signal]()
        self.relay = OutboxRelay(
            SqlOutboxStore(engine), self.bus, CONFIG, on_signal=self.signals.append
        )

    def told(self, kind: type) -> int:
        return sum(isinstance(signal, kind) for signal in self.signals)

    def has(self, count: int) -> bool:
        assert self.relay.problem != "OutboxRelay has ended", "it gave up"
        return len({e.event_id for e in self.bus.published_events}) == count


@asynccontextmanager
async def relaying(engine: AsyncEngine) -> AsyncIterator[Relaying]:
    relaying = Relaying(engine)
    async with relaying.relay:
        yield relaying


async def record(engine: AsyncEngine, *numbers: int) -> None:
    async with engine.begin() as connection:
        events = [DomainEvent("thing.changed", "thing", n % 5, {"n": n}) for n in numbers]
        Outbox(wake_up=False).record(connection, *events)


TROUBLES = {
    "connections": (
        "ALTER ROLE {role} CONNECTION LIMIT 0",
        "ALTER ROLE {role} CONNECTION LIMIT -1",
    ),
    "password": ("ALTER ROLE {role} PASSWORD 'other'", "ALTER ROLE {role} PASSWORD 'canary'"),
    "read-only": (
        "ALTER ROLE {role} SET default_transaction_read_only = on",
        "ALTER ROLE {role} RESET default_transaction_read_only",
    ),
}


@pytest.mark.fault("D17", "D18")
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_relay_waits_while_the_database_lets_it_do_nothing(
    services: Services, trouble: str
) -> None:
    # given
    url, role = create_database(services), f"relay_{uuid4().hex[:8]}"
    owner = open_engine(url)
    await create_all(owner)
    async with owner.begin() as connection:
        await connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'canary'"))
        await connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"))
    theirs = make_url(url).set(username=role, password="canary")
    engine = open_engine(theirs)
    await record(owner, 1, 2)
    async with relaying(engine) as it:
        await until(lambda: it.has(2), "they arrive")

        # when
        hurt, heal = (sql.format(role=role) for sql in TROUBLES[trouble])
        services.postgres.psql(hurt)
        services.postgres.psql(END_SESSIONS.format(role=role))
        await record(owner, 3)
        await until(lambda: it.told(s.StoreUnavailable) > 0, "it says so")
        await asyncio.sleep(1)  # long enough for a relay that spins to say it many times

        # then: told once, or once more if a session that lived a moment longer had let it hope
        down, up = s.StoreUnavailable, s.StoreAvailable
        states = [type(signal) for signal in it.signals if isinstance(signal, down | up)]
        assert states in ([down], [down, up, down])
        assert "canary" not in str(it.signals)
        services.postgres.psql(heal)
        services.postgres.psql(END_SESSIONS.format(role=role))
        await until(lambda: it.has(3), "it goes on")
    await engine.dispose()
    await owner.dispose()


@dataclass(frozen=True)
class SmallDisk:
    """A database whose files lie in 24 MB of memory."""

    folder: Path
    url: str

    def make_room(self) -> None:
        subprocess.run(["mount", "-o", "remount,size=128m", self.folder], check=True)


@pytest.fixture
def small_disk(services: Services) -> Iterator[SmallDisk]:
    account = services.postgres.account()
    if account is None:
        pytest.skip("only root can mount a disk of this size")
    folder = services.folder / f"small-{uuid4().hex[:8]}"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no right to mount here")
    os.chown(folder, account.pw_uid, account.pw_gid)
    name = f"small_{uuid4().hex[:8]}"
    try:
        services.postgres.psql(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        services.postgres.psql(f"CREATE DATABASE {name} TABLESPACE {name}")
        url = make_url(services.postgres.url).set(database=name)
        yield SmallDisk(folder, url.render_as_string(hide_password=False))
    finally:
        services.postgres.psql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        services.postgres.psql(f"DROP TABLESPACE IF EXISTS {name}")
        subprocess.run(["umount", folder], check=True)


@pytest.mark.fault("D16")
async def test_full_disk_is_the_callers_error_and_the_relay_goes_on_when_there_is_room(
    small_disk: SmallDisk,
) -> None:
    # given
    engine = open_engine(small_disk.url)
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE ballast (text text)"))
    await record(engine, *range(500))

    # when
    with pytest.raises(DBAPIError, match="No space left"):
        await fill_up(engine)
    with pytest.raises(DBAPIError, match="No space left"):
        await record_without_end(engine)
    async with engine.connect() as connection:
        recorded = await connection.scalar(text("SELECT count(*) FROM outbox"))
    assert recorded % 1000 == 500, "nothing half-stored"

    # then
    it = Relaying(engine)
    running = asyncio.create_task(it.relay.run())
    await until(lambda: it.told(s.StoreUnavailable) > 0, "the relay waits")
    small_disk.make_room()
    await until(lambda: it.has(recorded), "it goes on")
    await it.relay.stop()
    await running
    await engine.dispose()


async def fill_up(engine: AsyncEngine) -> None:
    some = "SELECT repeat(md5(n::text), 30) FROM generate_series(1, 100) n"
    while True:
        async with engine.begin() as connection:
            await connection.execute(text(f"INSERT INTO ballast {some}"))


async def record_without_end(engine: AsyncEngine) -> None:
    for start in range(1000, 10**6, 1000):
        await record(engine, *range(start, start + 1000))


@pytest.mark.fault("D4")
async def test_relay_goes_on_in_a_database_that_was_restored_from_a_dump(
    services: Services,
) -> None:
    # given
    before, after = create_database(services), create_database(services)
    old = open_engine(before)
    await create_all(old)
    async with relaying(old) as it:
        await record(old, *range(20))
        await until(lambda: it.has(20), "they arrive")
    await record(old, *range(20, 30))
    await old.dispose()

    # when
    server = services.postgres
    dump = await asyncio.to_thread(server.run, server.programs / "pg_dump", "-d", before)
    restore = (server.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", after)
    await asyncio.to_thread(lambda: server.run(*restore, stdin=dump))
    new = open_engine(after)
    async with relaying(new) as it:
        await record(new, *range(30, 40))

        # then
        await until(lambda: it.has(20), "what was pending and what is new")
    numbers = [e.payload["n"] for e in it.bus.published_events if e.aggregate_id == "0"]
    assert numbers == [20, 25, 30, 35]
    await new.dispose()


class Standby(Postgres):
    """A copy of another server, on the same port when that one is gone."""

    primary: Postgres

    def prepare(self) -> None:
        if self.data.exists():
            return
        self.password = self.primary.password
        copy = (self.primary.programs / "pg_basebackup", "-d", self.primary.url, "-D", self.data)
        self.run(*copy, "-R", "-c", "fast", timeout=120)


@pytest.mark.fault("D3")
async def test_relay_survives_a_failover_that_loses_the_last_commits(
    services: Services, server: Postgres
) -> None:
    # given
    engine = open_engine(server.url)
    await create_all(engine)
    async with relaying(engine) as it:
        await record(engine, *range(10))
        await until(lambda: it.has(10), "they arrive")
        standby = await asyncio.to_thread(copy_of, services, server)

        # when
        await record(engine, *range(10, 20))
        await until(
            lambda: it.has(20), "what will be lost arrives: the sink knows more than the database"
        )
        server.own()
        await asyncio.to_thread(server.kill)
        standby.ports = server.ports
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.psql, "SELECT pg_promote()")
        await engine.dispose()
        await record(engine, *range(20, 30))

        # then
        await until(lambda: it.has(30), "new events, at positions that were used before")
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT position, status FROM outbox"))).all()
    assert len(rows) == 20
    assert {row.status for row in rows} == {"published"}
    await engine.dispose()
    standby.stop()


def copy_of(services: Services, server: Postgres) -> Standby:
    """A standby that has all of now, and then hears no more."""
    Standby.primary = server
    standby = services.another(Standby)
    standby.stop()
    return standby


@pytest.mark.fault("D19", line="S-13")
async def test_tables_are_brought_up_to_date_while_writers_and_relays_run(
    services: Services, tmp_path: Path, scoreboard: Scoreboard
) -> None:
    database, broker = create_database(services), services.rabbitmq.url
    settings = {"OUTBOX_LEASE": "5", "OUTBOX_POLL_INTERVAL_MS": "200"}
    async with flowing(database, broker, tmp_path, **settings) as flow:
        # given: the tables of the first release, and writers that use them
        async with flow.engine.begin() as connection:
            await connection.run_sync(schema.downgrade, to=1)
        await flow.reader.start()
        flow.writers.start(writers=4, pause=0.01)

        # when: step by step, and a relay of today is refused by name until the last of them
        for version in range(2, schema.LATEST + 1):
            with pytest.raises(ConfigurationError, match="outrider schema apply"):
                await OutboxRelay(SqlOutboxStore(flow.engine), InMemoryEventBus()).run()
            await written(flow.writers.committed, 50)
            await schema.apply(flow.engine, to=version)
        await flow.start_relays(2)
        await written(flow.writers.committed, 50)
        await flow.writers.stopped()
        verdict = await flow.verdict()

        # then
        await flow.report(verdict, scoreboard, "S-13", faults=schema.LATEST)
        assert verdict.holds(duplicates=0), str(verdict)


async def written(committed: set[object], more: int) -> None:
    goal = len(committed) + more
    await until(lambda: len(committed) >= goal, "writers go on")

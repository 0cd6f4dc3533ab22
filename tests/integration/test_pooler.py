"""A relay behind a transaction pooler, where nothing of a session survives a statement."""

from __future__ import annotations

import asyncio
import pwd
import socket
from datetime import timedelta
from typing import ClassVar

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outrider import DomainEvent, InMemoryEventBus, Outbox, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider import signals as s
from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Server, Services
from outrider.testing.services.install.programs import Program
from outrider.testing.services.servers.postgres import Postgres

PROGRAM = Program(
    service="pgbouncer",
    names=("pgbouncer",),
    package="pgbouncer",
    places=("$PATH", "/usr/sbin"),
    remedy="apt-get install pgbouncer",
)


class PgBouncer(Server):
    """Two server connections for everybody, handed on after every transaction."""

    kind = "pgbouncer"
    upstream: ClassVar[Postgres]

    @property
    def version(self) -> str:
        return "any"

    def account(self) -> pwd.struct_passwd | None:
        return self.upstream.account()

    def prepare(self) -> None:
        to = self.upstream
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\noutrider = host=127.0.0.1 port={to.port} dbname=outrider "
            f"user=outrider password={to.password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nunix_socket_dir =\n"
            f"logfile = {self.folder}/pgbouncer.log\n"
        )

    def command(self) -> list[str]:
        return [str(self.program(PROGRAM)), str(self.folder / "pgbouncer.ini")]

    def ask(self) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return self.mark.encode()

    def private_url(self) -> str:
        return f"postgresql+asyncpg://outrider:x@127.0.0.1:{self.port}/outrider"


async def jostle(port: int) -> None:
    """Others who use the pooler, so that hardly two transactions meet the same process."""
    link = await asyncpg.connect(
        f"postgresql://outrider:x@127.0.0.1:{port}/outrider", statement_cache_size=0
    )
    try:
        while True:
            await link.execute("SELECT pg_sleep(0.002)")
    finally:
        link.terminate()


@pytest.mark.fault("D15")
async def test_relay_works_behind_a_transaction_pooler_by_polling(services: Services) -> None:
    PgBouncer.upstream = services.another(Postgres)
    pooler = services.another(PgBouncer)
    direct = create_async_engine(PgBouncer.upstream.url.replace("://", "+asyncpg://", 1))
    through = create_async_engine(
        pooler.url, connect_args={"statement_cache_size": 0, "prepared_statement_name_func": str}
    )
    async with direct.begin() as connection:
        await connection.run_sync(OutboxTables().metadata.create_all)
    bus, seen = InMemoryEventBus(), []
    config = RelayConfig(poll_interval=timedelta(milliseconds=50))

    crowd = [asyncio.create_task(jostle(pooler.port)) for _ in range(6)]
    async with OutboxRelay(SqlOutboxStore(through), bus, config, on_signal=seen.append):
        for number in range(200):
            async with AsyncSession(direct) as session, session.begin():
                event = DomainEvent("thing.happened", "thing", number % 7, {"n": number})
                Outbox(wake_up=False).record(session, event)
        async with asyncio.timeout(20):
            while bus.event_count < 200:  # noqa: ASYNC110 - nothing tells us but the bus
                await asyncio.sleep(0.02)

    for one in crowd:
        one.cancel()
    (started,) = (signal for signal in seen if isinstance(signal, s.RelayStarted))
    assert "polling only" in started.store
    assert not [signal for signal in seen if isinstance(signal, s.StoreUnavailable)]
    for aggregate in range(7):
        numbers = [e.payload["n"] for e in bus.events_for_aggregate(str(aggregate))]
        assert numbers == sorted(numbers)
    assert bus.event_count == 200
    async with direct.connect() as connection:
        free = text("SELECT count(*) FROM outbox_lanes WHERE owner IS NULL")
        assert await connection.scalar(free) == 64
    await through.dispose()
    await direct.dispose()

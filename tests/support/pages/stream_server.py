"""A web application with a live stream: in this event loop, or in its own process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request

from outrider import DomainEvent, Outbox, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.integrations.starlette import stream_route
from outrider.stream import StreamConfig, StreamManager, StreamPublisher
from outrider.stream.delivered import SqlDeliveredEvents
from outrider.testing.services.ports import free_ports
from tests.support.pages.sse import Client
from tests.support.until import until

outbox = Outbox(routes={"*": "stream"})
RELAY = RelayConfig(poll_interval=timedelta(seconds=1), lease=timedelta(seconds=2))


def anybody(request: Request) -> bool:
    return True


def relay_for(engine: AsyncEngine, config: RelayConfig = RELAY) -> OutboxRelay:
    store = SqlOutboxStore(engine, sink="stream", announce=True)
    return OutboxRelay(store, StreamPublisher(), config)


async def record(engine: AsyncEngine, *events: DomainEvent) -> None:
    async with AsyncSession(engine) as session, session.begin():
        outbox.record(session, *events)


def happened(
    n: int, aggregate: str = "a", kind: str = "thing.happened", **more: Any
) -> DomainEvent:
    return DomainEvent(kind, kind.partition(".")[0], aggregate, {"n": n, **more})


class Site:
    """A server in this event loop, its relay and its clients."""

    def __init__(self, engine: AsyncEngine, manager: StreamManager, port: int) -> None:
        self.engine, self.manager, self.port = engine, manager, port
        self.clients: list[Client] = []

    async def client(self, **parameters: Any) -> Client:
        return await self.resume(None, **parameters)

    async def resume(self, seen: int | str | None, /, **parameters: Any) -> Client:
        return await self.connect(Client(self.port, **parameters), last_event_id=seen)

    async def connect(self, client: Client, **options: Any) -> Client:
        self.clients.append(client)
        return await client.open(**options)

    async def happen(self, *numbers: int, aggregate: str = "a", **more: Any) -> None:
        await record(self.engine, *[happened(n, aggregate, **more) for n in numbers])


@asynccontextmanager
async def site(
    engine: AsyncEngine,
    config: StreamConfig | None = None,
    authorize: Any = anybody,
    relay: RelayConfig | None = RELAY,
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        if relay is not None:
            await stack.enter_async_context(relay_for(engine, relay))
        manager = StreamManager(SqlDeliveredEvents(engine, sink="stream"), config)
        await stack.enter_async_context(manager)
        app = Starlette(routes=[stream_route(manager, authorize=authorize)])
        (port,) = free_ports(1)
        options = {"port": port, "log_level": "warning", "lifespan": "off"}
        server = uvicorn.Server(uvicorn.Config(app, **options))  # type: ignore[arg-type]
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started, "the server has started")
        made = Site(engine, manager, port)
        try:
            yield made
        finally:
            await manager.stop()
            for client in made.clients:
                client.kill()
            server.should_exit = True
            await serving


class SiteProcess:
    """The same application in its own process."""

    def __init__(self, url: str, log: Path, *, relay: bool = False, window: int = 1000) -> None:
        (self.port,) = free_ports(1)
        self.log = log
        self._settings = {
            "STREAM_DATABASE": url,
            "STREAM_RELAY": "yes" if relay else "",
            "STREAM_WINDOW": str(window),
        }
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = ["-m", "uvicorn", f"{__name__}:app_of_process", "--factory"]
        quiet = ["--no-access-log", "--port", str(self.port)]
        with self.log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *command, *quiet],
                env={**os.environ, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def restart(self) -> None:
        """Kill the process, and start it again."""
        self.kill()
        self._process = self._start()

    async def started(self) -> None:
        await until(lambda: b"running on" in self.log.read_bytes(), f"started: {self.log}")

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        await until(lambda: self._process.poll() is not None, "the process has ended")
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def app_of_process() -> Starlette:
    engine = create_async_engine(os.environ["STREAM_DATABASE"])
    config = StreamConfig(window=int(os.environ["STREAM_WINDOW"]))
    manager = StreamManager(SqlDeliveredEvents(engine, sink="stream"), config)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            if os.environ["STREAM_RELAY"]:
                await stack.enter_async_context(relay_for(engine))
            await stack.enter_async_context(manager)
            yield

    return Starlette(routes=[stream_route(manager, authorize=anybody)], lifespan=lifespan)

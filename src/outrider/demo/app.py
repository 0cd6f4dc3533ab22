"""The demo's web application: the page, its buttons, the live stream and the dashboard."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.ext.asyncio import async_sessionmaker
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from outrider.brokers.stream import StreamManager, StreamPublisher
from outrider.consumer import EventConsumer
from outrider.dashboard import dashboard
from outrider.demo.broker import DemoBroker
from outrider.demo.shop import BROKER, STREAM, Shop, handlers
from outrider.demo.supervisor import Supervisor
from outrider.integrations.starlette import stream_route
from outrider.relay import OutboxRelay
from outrider.relay_state import RelayConfig
from outrider.signals import EventHandled, Signal
from outrider.sql.delivered import SqlDelivered
from outrider.sql.engines import open_engine
from outrider.sql.filters import EventFilter
from outrider.sql.inbox import SqlInbox
from outrider.sql.inspector import OutboxInspector
from outrider.sql.repair import OutboxRepair
from outrider.sql.schema import create_all
from outrider.sql.store import SqlOutbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

_STATIC: Final = Path(__file__).with_name("static")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
}


class Demo:
    """All parts of it: shop, broker, relay process, consumer, stream."""

    def __init__(self, database: str, port: int) -> None:
        self.engine = open_engine(database)
        self.shop, self.broker = Shop(self.engine), DemoBroker()
        self.relay = Supervisor(database, f"http://127.0.0.1:{port}/broker")
        self.handled, self.duplicates = 0, 0
        self._inspector = OutboxInspector(self.engine)
        stream = SqlOutbox(self.engine, sink=STREAM, announce=True)
        quick = RelayConfig(name="stream", poll_interval=timedelta(milliseconds=200))
        self._stream_relay = OutboxRelay(stream, StreamPublisher(), quick)
        self.stream = StreamManager(SqlDelivered(self.engine, sink=STREAM))
        inbox = SqlInbox(async_sessionmaker(self.engine))
        source = self.broker.memory.source("invoices")
        self._consumer = EventConsumer(source, handlers, inbox=inbox, on_signal=self._watch)

    def _watch(self, signal: Signal) -> None:
        if isinstance(signal, EventHandled):
            self.handled += signal.outcome == "ok"
            self.duplicates += signal.outcome == "duplicate"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await create_all(self.engine)
        await self.shop.create_tables()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.engine.dispose)
            for part in (self._stream_relay, self.stream, self._consumer):
                await stack.enter_async_context(part)
            for work in (self.relay.run(), self.shop.keep_busy()):
                task = asyncio.create_task(work)
                stack.push_async_callback(_end, task)
            yield

    async def state(self) -> dict[str, Any]:
        counts = {
            state: await self._inspector.count(EventFilter(sink=BROKER, state=state))
            for state in ("pending", "retrying", "failed", "published")
        }
        return {
            **await self.shop.shown(),
            "counts": counts,
            "broker": {
                "broken": self.broker.broken,
                "messages": len(self.broker.memory.messages),
            },
            "relay": {"alive": self.relay.alive, "starts": self.relay.starts},
            "handled": self.handled,
            "duplicates": self.duplicates,
        }

    async def act(self, action: str) -> None:
        match action:
            case "order":
                await self.shop.place()
            case "break":
                self.broker.broken = True
            case "repair":
                self.broker.broken, self.broker.repaired = False, True
                await OutboxRepair(self.engine, who="demo").retry(EventFilter(sink=BROKER))
            case "crash":
                self.broker.crash_relay = self.relay.kill
                await self.shop.place()
            case "poison":
                self.broker.repaired = False
                await self.shop.place(poisoned=True)
            case _:
                raise KeyError(action)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def demo_app(demo: Demo) -> Starlette:
    async def page(_: Request) -> Response:
        return FileResponse(_STATIC / "index.html", headers=_HEADERS)

    async def state(_: Request) -> Response:
        return JSONResponse(await demo.state())

    async def act(request: Request) -> Response:
        if request.headers.get("sec-fetch-site") not in (None, "same-origin"):
            return Response(status_code=403)
        try:
            await demo.act(request.path_params["action"])
        except KeyError:
            return Response(status_code=404)
        return Response(status_code=204)

    async def broker(request: Request) -> Response:
        if demo.broker.broken:
            return Response(status_code=503)
        return JSONResponse(await demo.broker.take(await request.json()))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with demo.running():
            yield

    return Starlette(
        routes=[
            Route("/", page),
            Route("/state", state),
            Route("/do/{action}", act, methods=["POST"]),
            Route("/broker", broker, methods=["POST"]),
            stream_route(demo.stream, authorize=lambda _: True),
            Mount("/outbox", dashboard(demo.engine, show_payload=True)),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        lifespan=lifespan,
    )

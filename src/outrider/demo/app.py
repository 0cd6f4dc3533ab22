"""The demo's web application: the page, its buttons, the API, the live stream, the dashboard."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from outrider.dashboard import dashboard
from outrider.demo.broker import LocalBroker
from outrider.demo.messaging.models import OUTBOX_TABLES
from outrider.errors import BrokerUnavailable
from outrider.integrations.starlette import stream_route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from outrider.demo.stage import Demo

_STATIC: Final = Path(__file__).with_name("static")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}


def demo_app(demo: Demo) -> Starlette:
    async def page(_: Request) -> Response:
        return FileResponse(_STATIC / "index.html", headers=_HEADERS)

    async def state(_: Request) -> Response:
        return JSONResponse(await demo.state())

    async def run_action(request: Request) -> Response:
        if request.headers.get("sec-fetch-site") not in (None, "same-origin"):
            return Response(status_code=403)
        try:
            await demo.run_action(request.path_params["action"])
        except KeyError:
            return Response(status_code=404)
        return Response(status_code=204)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with demo.running():
            yield

    outbox = dashboard(demo.engine, tables=OUTBOX_TABLES, show_payload=True)
    routes = [
        Route("/", page),
        Route("/state", state),
        Route("/do/{action}", run_action, methods=["POST"]),
        stream_route(demo.stream, authorize=lambda _: True),
        Mount("/api", demo.api),
        Mount("/outbox", outbox),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    if isinstance(demo.broker, LocalBroker):
        routes.append(_broker_route(demo.broker))
    return Starlette(routes=routes, lifespan=lifespan)


def _broker_route(broker: LocalBroker) -> Route:
    async def publish(request: Request) -> Response:
        try:
            return JSONResponse(await broker.publish_all(await request.json()))
        except BrokerUnavailable:
            return Response(status_code=503)

    return Route("/broker", publish, methods=["POST"])

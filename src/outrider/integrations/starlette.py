"""The live stream as an HTTP endpoint: `GET /events` in Starlette, FastAPI or any ASGI server."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

try:
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing.name}: pip install 'outrider[stream]'") from None

from outrider.errors import BrokerUnavailable, ConfigurationError
from outrider.stream import Since, StreamFilter, StreamManager, Wanted

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from outrider.stream import Stream

Verdict = bool | Wanted
"""False refuses, True allows all events, a StreamFilter or other predicate allows some."""
AuthorizeStream = Callable[[Request], Verdict | Awaitable[Verdict]]

_METHODS: Final = ["GET", "HEAD", "OPTIONS"]
_ALLOW: Final = {"Allow": ", ".join(_METHODS)}
_RETRY_LATER: Final = {"Retry-After": "5"}
# Proxies must neither buffer nor cache a stream.
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_MEDIA_TYPE: Final = "text/event-stream"

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_FILTERS: Final = {
    "type": "types",
    "aggregate_type": "aggregate_types",
    "aggregate_id": "aggregate_ids",
}
_MAX_FILTERS, _MAX_FILTER_CHARS = 100, 255
_FINISH_TIMEOUT_S: Final = 1.0

_log: Final = logging.getLogger("outrider.stream")


def stream_route(
    manager: StreamManager, *, authorize: AuthorizeStream, path: str = "/events"
) -> Route:
    """A route for the `routes` of an application or router."""
    return Route(path, EventStream(manager, authorize).respond, methods=_METHODS, name="events")


def stream_app(manager: StreamManager, *, authorize: AuthorizeStream) -> EventStream:
    """An ASGI application, to mount or to serve directly."""
    return EventStream(manager, authorize)


class EventStream:
    """Responds with a stream if `authorize` allows it, and checks again while the stream runs.

    An EventSource in a browser cannot send headers, and URLs end up in logs. So `authorize` should
    check the session cookie, or a ticket that is valid for one use.
    """

    def __init__(self, manager: StreamManager, authorize: AuthorizeStream) -> None:
        self._manager, self._authorize = manager, authorize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a stream of events is served over http, not {scope['type']}")
        response = await self.respond(Request(scope, receive))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """The endpoint: returns the response to a request."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_ALLOW)
        if request.method not in _METHODS:
            return PlainTextResponse("only GET", 405, _ALLOW)
        try:
            wanted, since = _filter_of(request), _since_of(request)
        except _BadRequest as bad:
            return PlainTextResponse(str(bad), 400)
        verdict = await self._verdict(request)
        if verdict is False:
            return PlainTextResponse("not allowed", 403)
        if request.method == "HEAD":
            return Response(headers=_HEADERS, media_type=_MEDIA_TYPE)

        async def still_allowed() -> tuple[Wanted, ...] | None:
            again = await self._verdict(request)
            return None if again is False else _all_of(wanted, again)

        return _Streaming(self._manager, _all_of(wanted, verdict), since, still_allowed)

    async def _verdict(self, request: Request) -> Verdict:
        if inspect.iscoroutinefunction(self._authorize):
            verdict = await self._authorize(request)
        else:
            verdict = await asyncio.to_thread(self._authorize, request)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        # Any other value that is returned by mistake, such as None, refuses.
        return verdict if verdict is True or callable(verdict) else False


class _Streaming(Response):
    """Runs until the client disconnects, the stream ends, or the permission is withdrawn."""

    media_type = _MEDIA_TYPE

    def __init__(
        self,
        manager: StreamManager,
        wanted: tuple[Wanted, ...],
        since: Since,
        still_allowed: Callable[[], Awaitable[tuple[Wanted, ...] | None]],
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._manager, self._wanted, self._since = manager, wanted, since
        self._still_allowed = still_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            stream = self._manager.connect(*self._wanted, since=self._since)
        except BrokerUnavailable as full:
            await PlainTextResponse(str(full), 503, _RETRY_LATER)(scope, receive, send)
            return
        async with aclosing(stream):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._run(stream, receive, send)

    async def _run(self, stream: Stream, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(stream, send), name="outrider-write")
        disconnecting = asyncio.create_task(_disconnected(receive), name="outrider-disconnect")
        tasks = [writing, disconnecting]
        if interval := self._manager.config.recheck:
            checking = self._recheck(stream, interval.total_seconds())
            tasks.append(asyncio.create_task(checking, name="outrider-recheck"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if disconnecting.cancelled():
            await _finish(send)
        if not writing.cancelled():
            writing.result()

    async def _write(self, stream: Stream, send: Send) -> None:
        limit = self._manager.config.send_timeout.total_seconds()
        async for text in stream:
            try:
                async with asyncio.timeout(limit):
                    await send({"type": "http.response.body", "body": text, "more_body": True})
            except (TimeoutError, OSError):  # the client is too slow or disconnected
                return

    async def _recheck(self, stream: Stream, interval: float) -> None:
        while True:
            await asyncio.sleep(interval * random.uniform(0.8, 1.0))  # noqa: S311 - spread, not secret
            try:
                async with asyncio.timeout(interval):
                    wanted = await self._still_allowed()
            except Exception as error:  # noqa: BLE001 - an error of authorize refuses
                _log.warning("a stream was closed: authorize raised %s", type(error).__name__)
                return
            if wanted is None:
                return
            stream.wanted = wanted


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _finish(send: Send) -> None:
    """Send the end of the response, if the client still reads."""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(_FINISH_TIMEOUT_S):
            await send({"type": "http.response.body"})


def _all_of(wanted: StreamFilter, verdict: Verdict) -> tuple[Wanted, ...]:
    return (wanted,) if isinstance(verdict, bool) else (wanted, verdict)


def _filter_of(request: Request) -> StreamFilter:
    given = {name: request.query_params.getlist(name) for name in _FILTERS}
    if sum(map(len, given.values())) > _MAX_FILTERS:
        raise _BadRequest(f"at most {_MAX_FILTERS} filters")
    for name, values in given.items():
        if not all(0 < len(value) <= _MAX_FILTER_CHARS and value.isprintable() for value in values):
            raise _BadRequest(f"{name}: 1 to {_MAX_FILTER_CHARS} printable characters")
    try:
        return StreamFilter(**{_FILTERS[name]: values or None for name, values in given.items()})
    except ConfigurationError:
        raise _BadRequest("type: write order.placed, order.* or *") from None


def _since_of(request: Request) -> Since:
    """Where to start. The header wins: a reconnecting browser sends it with the original URL."""
    start = request.query_params.getlist("from") or ["now"]
    if start not in (["now"], ["start"]):
        raise _BadRequest("from: now or start")
    ids = request.headers.getlist("last-event-id")
    ids = ids or request.query_params.getlist("last_event_id")
    if not ids:
        return "start" if start == ["start"] else "now"
    if len(ids) > 1 or not _NUMBER.fullmatch(ids[0]):
        raise _BadRequest("Last-Event-ID: one number, as it came with an event")
    return int(ids[0])


class _BadRequest(ValueError):
    """The request is invalid; the text says what is expected."""

"""Whatever a browser or a stranger asks for, the stream and the page answer within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette

from outrider.admin.filters import STATUSES, EventFilter
from outrider.dashboard import dashboard
from outrider.integrations.starlette import stream_route
from outrider.store.schema.migrate import create_all
from outrider.stream import StreamConfig, StreamManager
from outrider.stream.delivered import SqlDeliveredEvents
from tests.support.fuzz.budget import fuzz, hostile_text
from tests.support.pages.pages import event, living, record, run

MOST_BYTES = 1_000_000
REFUSED = range(400, 500)
WELCOME = (
    (b"host", b"localhost"),
    (b"sec-fetch-site", b"same-origin"),
    (b"content-type", b"application/x-www-form-urlencoded"),
)

numbers = st.integers(-(2**70), 2**70).map(str)
values = hostile_text | numbers | st.sampled_from(["order.*", "*", "2026-01-31T12:00Z", *STATUSES])
names = st.sampled_from(
    [
        *EventFilter.__dataclass_fields__,
        *(
            "before",
            "limit",
            "from",
            "last_event_id",
            "event_type",
            "aggregate_type",
            "count",
            "expected",
        ),
    ]
)
queries = st.lists(st.tuples(names | hostile_text, values), max_size=6).map(
    lambda pairs: urlencode(pairs, errors="surrogatepass").encode()
) | hostile_text.map(lambda text: quote(text, errors="surrogatepass").encode())
paths = st.sampled_from(
    [
        *("/", "/events", "/failures", "/relays", "/inbox", "/audit", "/api/samples", "/api"),
        *("/events/{id}", "/events/{id}/caused", "/actions/retry", "/actions/discard"),
        *("/actions/{text}", "/events/{text}", "/static/{text}", "/static/../app.py", "/{text}"),
    ]
)
header_values = hostile_text.map(
    lambda text: text.encode("latin-1", "replace").translate(None, b"\r\n\0")
)
headers = st.lists(
    st.tuples(
        st.sampled_from([b"last-event-id", b"accept", b"host", b"sec-fetch-site", b"origin"]),
        header_values | st.sampled_from([b"application/json", b"text/html", b"7", b"same-origin"]),
    ),
    max_size=4,
)


class Client:
    """Takes an answer up to a point; then it is gone."""

    def __init__(self, body: bytes, leave_after: int) -> None:
        self.status, self.size, self._left = 0, 0, leave_after
        self._asks = [{"type": "http.request", "body": body}]
        self._gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for _, value in message["headers"]:
                assert not {*b"\r\n"} & {*value}
        else:
            self.size += len(message.get("body", b""))
            self._left -= 1
            if not self._left or not message.get("more_body"):
                self._gone.set()

    async def receive(self) -> Any:
        if self._asks:
            return self._asks.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}


async def ask(
    app: Any, scope: dict[str, Any], *, body: bytes = b"", leave_after: int = 10**9
) -> Client:
    answer = Client(body, leave_after)
    asked = {"type": "http", "http_version": "1.1", "scheme": "http", "root_path": "", **scope}
    async with asyncio.timeout(60):
        await app({**asked, "client": ("127.0.0.1", 1)}, answer.receive, answer.send)
    return answer


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[tuple[AsyncEngine, UUID]]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/shop.db")
    await create_all(engine)
    events = [event(str(n), f"thing.{n % 3}") for n in range(60)]
    await record(engine, *events)
    await run(engine, "UPDATE outbox SET status = 'published', delivery_number = position")
    await run(
        engine, "INSERT INTO outbox_sinks (sink, last_delivery_number) VALUES ('default', 60)"
    )
    yield engine, events[0].event_id
    await engine.dispose()


def scope_of(method: str, path: str, query: bytes, found: list[Any]) -> dict[str, Any]:
    """With headers that let it in, unless one of the same name comes first."""
    raw = quote(path, safe="/", errors="surrogatepass").encode()
    spelled = path.encode(errors="replace").decode()
    return {
        "method": method,
        "path": spelled,
        "raw_path": raw,
        "query_string": query,
        "headers": [*found, *WELCOME],
    }


def test_any_request_to_the_stream_is_answered_or_refused(tmp_path: Path) -> None:
    async def open_stream(stack: AsyncExitStack) -> Starlette:
        engine, _ = await stack.enter_async_context(filled(tmp_path))
        config = StreamConfig(keep_alive=timedelta(milliseconds=1), on_signals=False)
        manager = StreamManager(SqlDeliveredEvents(engine, sink="default"), config)
        await stack.enter_async_context(manager)
        return Starlette(routes=[stream_route(manager, authorize=lambda _: True)])

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        app = runner.run(open_stream(stack))

        def stream(method: str, query: bytes, found: list[Any]) -> None:
            scope = scope_of(method, "/events", query, found)
            answer = runner.run(ask(app, scope, leave_after=3))
            assert answer.status in (200, 204, 405) or answer.status in REFUSED
            assert answer.size < MOST_BYTES

        try:
            methods = st.sampled_from(["GET", "GET", "HEAD", "OPTIONS", "POST"])
            fuzz(stream, methods, queries, headers)
        finally:
            runner.run(stack.aclose())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_any_request_to_the_page_is_answered_or_refused(tmp_path: Path, method: str) -> None:
    async def open_page(stack: AsyncExitStack) -> tuple[Starlette, UUID]:
        engine, event_id = await stack.enter_async_context(filled(tmp_path))
        app = dashboard(engine)
        await stack.enter_async_context(living(app))
        return app, event_id

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        app, event_id = runner.run(open_page(stack))

        def page(path: str, text: str, query: bytes, found: list[Any], body: bytes) -> None:
            path = path.replace("{id}", str(event_id)).replace("{text}", text)
            answer = runner.run(ask(app, scope_of(method, path, query, found), body=body))
            assert answer.status in (200, 303, 307) or answer.status in REFUSED, answer.status
            assert answer.size < MOST_BYTES

        try:
            fuzz(page, paths, hostile_text, queries, headers, queries)
        finally:
            runner.run(stack.aclose())

"""The live stream over HTTP: a real server, real databases, clients that read what is sent."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.exceptions import HTTPException
from starlette.requests import Request

from outrider import (
    DomainEvent,
    Outbox,
    OutboxNames,
    OutboxRelay,
    SqlOutboxStore,
    event_context,
)
from outrider.integrations.starlette import stream_app
from outrider.recording.rows import insert, row_of
from outrider.store.schema import migrate as schema
from outrider.stream import StreamConfig, StreamFilter, StreamManager, StreamPublisher
from outrider.stream.delivered import SqlDeliveredEvents
from outrider.testing.services import Server, Services
from tests.support.databases import create_database
from tests.support.pages.sse import Client, Cut
from tests.support.pages.stream_server import SiteProcess, happened, record, relay_for, site
from tests.support.until import until

NO_WINDOW = StreamConfig(window=1)


@pytest.fixture
async def postgres(services: Services) -> AsyncIterator[AsyncEngine]:
    url = create_database(services).replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url)
    await schema.create_all(engine)
    yield engine
    await engine.dispose()


async def run(engine: AsyncEngine, sql: str, **values: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(sql), values)


def numbers(client: Client) -> list[int]:
    return [message.n for message in client.messages]


async def test_events_reach_a_browser_as_server_sent_events(database: AsyncEngine) -> None:
    async with site(database) as here:
        client = await here.client()
        with event_context(correlation_id="c-1", user_id="u-secret"):
            event = DomainEvent("order.placed", "order", "o-1", {"n": 1, "note": "a\r\nid: 9\n\nb"})
            await record(database, event)

        (got,) = await client.take(1)

        assert client.status == 200
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.headers["cache-control"] == "no-cache"
        assert client.headers["x-accel-buffering"] == "no"
        assert client.parser.retry is not None
        assert (got.id, got.type) == (1, "order.placed")
        assert got.data["id"] == str(event.event_id)
        assert got.data["data"] == {"n": 1, "note": "a\r\nid: 9\n\nb"}
        assert got.data["correlationid"] == "c-1"
        assert "u-secret" not in json.dumps(got.data)


async def test_stream_and_store_without_a_named_sink_meet(database: AsyncEngine) -> None:
    relay = OutboxRelay(SqlOutboxStore(database, announce=True), StreamPublisher())
    async with (
        relay,
        StreamManager(SqlDeliveredEvents(database)) as manager,
        aclosing(manager.connect(since="start")) as stream,
        asyncio.timeout(30),
    ):
        async with database.begin() as connection:
            Outbox().record(connection, DomainEvent("order.placed", "order", 1, {}))
        texts = [await anext(stream), await anext(stream)]

    assert b"order.placed" in texts[1]


async def test_events_arrive_without_waiting_for_a_poll(database: AsyncEngine) -> None:
    config = StreamConfig(poll_interval=timedelta(hours=1))
    async with site(database, config) as here:
        client = await here.client()

        for n in range(5):
            await here.happen(n)
            await client.take(1)

        assert numbers(client) == list(range(5))


async def test_filters_narrow_what_a_client_sees(database: AsyncEngine) -> None:
    async with site(database) as here:
        everything = await here.client()
        orders = await here.client(type="order.*")
        some = await here.client(type=["order.placed", "user.*"], aggregate_id="b")
        users = await here.client(aggregate_type="user")

        for n, aggregate, kind in (
            (1, "a", "order.placed"),
            (2, "b", "order.placed"),
            (3, "b", "order.paid"),
            (4, "b", "user.named"),
            (5, "b", "order.placed"),
            (6, "b", "user.left"),
        ):
            await here.happen(n, aggregate=aggregate, kind=kind)
            await everything.take(1)  # else aggregates might overtake each other

        assert [m.n for m in await orders.take(4)] == [1, 2, 3, 5]
        assert [m.n for m in await some.take(4)] == [2, 4, 5, 6]
        assert [m.n for m in await users.take(2)] == [4, 6]


@pytest.mark.parametrize("config", [None, NO_WINDOW], ids=["memory", "table"])
async def test_client_resumes_without_gap_or_repeat(
    database: AsyncEngine, config: StreamConfig | None
) -> None:
    async with site(database, config) as here:
        first = await here.client()
        await here.happen(*range(40))
        await first.take(25)
        first.kill()
        await here.happen(*range(40, 300))

        by_header = await here.resume(first.messages[24].id, last_event_id=3)
        by_url = await here.client(last_event_id=first.messages[24].id)
        await by_header.take(275)
        await here.happen(300)

        await by_header.take(1)
        await by_url.take(276)
        assert numbers(by_header) == numbers(by_url) == list(range(25, 301))


async def test_client_may_begin_with_the_oldest(database: AsyncEngine) -> None:
    async with site(database) as here:
        live = await here.client()
        await here.happen(1, 2, 3)
        await live.take(3)

        again = await here.client(from_="start")
        later = await here.client(from_="now")
        await here.happen(4)

        await again.take(4)
        await later.take(1)
        assert numbers(again) == [1, 2, 3, 4]
        assert numbers(later) == [4]


async def test_transaction_that_commits_late_is_seen_once(postgres: AsyncEngine) -> None:
    async with site(postgres, NO_WINDOW) as here, postgres.connect() as late:
        client = await here.client()
        envelope = happened(1, "late").to_envelope()
        transaction = await late.begin()
        await late.run_sync(insert, OutboxNames(), [row_of(envelope, "stream")])
        await here.happen(2, 3, aggregate="early")
        before = await client.take(2)
        client.kill()

        await transaction.commit()
        await here.happen(4, aggregate="early")

        again = await here.resume(before[-1].id)
        assert {m.n for m in await again.take(2)} == {1, 4}
        everything = await here.client(from_="start")
        await everything.take(4)
        assert sorted(numbers(everything)) == [1, 2, 3, 4]
        rows = await positions(postgres)
        assert rows[0] > min(rows[1:]), "the first position was not the first delivery"


async def positions(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        query = text("SELECT delivery_number FROM outbox ORDER BY position")
        return list((await connection.execute(query)).scalars())


async def test_client_is_told_of_what_was_forgotten(database: AsyncEngine) -> None:
    async with site(database, NO_WINDOW) as here:
        live = await here.client()
        await here.happen(*range(1, 11))
        await live.take(10)
        await run(database, "DELETE FROM outbox WHERE delivery_number <= 6")

        late = await here.resume(2)
        told, *rest = await late.take(5)
        in_time = await here.resume(6)

        assert (told.type, told.id) == ("outrider.gap", 6)
        assert told.data == {"requested": 2, "oldest": 7, "newest": 10}
        assert [m.n for m in rest] == [7, 8, 9, 10]
        assert [m.n for m in await in_time.take(4)] == [7, 8, 9, 10]


async def test_client_that_knows_more_than_the_database_is_told(database: AsyncEngine) -> None:
    async with site(database) as here:
        client = await here.resume(10**17)
        (told,) = await client.take(1)

        await here.happen(1)

        assert told.data == {"requested": 10**17, "oldest": 1, "newest": 0}
        assert [m.n for m in await client.take(1)] == [1]


async def test_client_that_takes_nothing_is_dropped_and_resumes(database: AsyncEngine) -> None:
    config = StreamConfig(send_timeout=timedelta(seconds=1), window_bytes=1024 * 1024)
    async with site(database, config) as here:
        slow = await here.connect(Client(here.port), receive_buffer=4096)
        quick = await here.client()
        await until(lambda: here.manager.streams == 2, "both are connected")

        for n in range(200):
            await here.happen(n, text="x" * 100_000)
            await quick.take(1)
        await until(lambda: here.manager.streams == 1, "the slow one was dropped")
        with pytest.raises((Cut, AssertionError)):
            await slow.take(200)
        seen = slow.messages
        again = await here.resume(seen[-1].id)
        await again.take(200 - len(seen))

        assert numbers(quick) == list(range(200))
        assert 0 < len(seen) < 200
        assert [*numbers(slow), *numbers(again)] == list(range(200))


async def test_only_whom_authorize_lets_may_read(database: AsyncEngine) -> None:
    async def by_token(request: Request) -> Any:
        match request.headers.get("authorization"):
            case "all":
                return True
            case "own":
                return StreamFilter(aggregate_ids=["mine"])
            case "teapot":
                raise HTTPException(418)
        return None

    async with site(database, authorize=by_token) as here:

        def token(word: str) -> dict[str, Any]:
            return {"headers": {"Authorization": word}}

        refused = [
            await here.connect(Client(here.port), **token(word)) for word in ("", "no", "teapot")
        ]
        everything = await here.connect(Client(here.port), **token("all"))
        both = Client(here.port, aggregate_id=["mine", "yours"])
        own = await here.connect(both, **token("own"))
        await here.happen(1, aggregate="yours")
        await everything.take(1)
        await here.happen(2, aggregate="mine")

        assert [client.status for client in refused] == [403, 403, 418]
        assert not any("event-stream" in client.headers["content-type"] for client in refused)
        await everything.take(1)
        assert numbers(everything) == [1, 2]
        assert [m.n for m in await own.take(1)] == [2]


@pytest.mark.parametrize("end", ["refuses", "raises", "hangs"])
async def test_stream_ends_with_its_permission(
    database: AsyncEngine, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = asyncio.Event()
    allowed.set()

    async def authorize(request: Request) -> bool:
        if allowed.is_set() or end == "refuses":
            return allowed.is_set()
        if end == "hangs":
            await asyncio.sleep(3600)
        raise ValueError("who is u-secret?")

    config = StreamConfig(recheck=timedelta(milliseconds=200))
    async with site(database, config, authorize) as here:
        client = await here.client()
        await here.happen(1)
        await client.take(1)

        allowed.clear()
        await client.ended()
        await here.happen(2)

        assert numbers(client) == [1]
    assert "u-secret" not in caplog.text
    assert ("authorize raised" in caplog.text) is (end != "refuses")


async def test_permission_may_shrink_while_the_stream_runs(database: AsyncEngine) -> None:
    allowed = ["a", "b"]
    asked: list[int] = []

    def authorize(request: Request) -> StreamFilter:
        asked.append(len(allowed))
        return StreamFilter(aggregate_ids=list(allowed))

    config = StreamConfig(recheck=timedelta(milliseconds=100))
    async with site(database, config, authorize) as here:
        client = await here.client()
        await here.happen(1, aggregate="b")
        await client.take(1)

        allowed.remove("b")
        await until(lambda: asked[-2:] == [1, 1], "it was asked again, and then applied")
        await here.happen(2, aggregate="b")
        await here.happen(3, aggregate="a")

        await client.take(1)
        assert numbers(client) == [1, 3]


async def test_streams_are_limited(database: AsyncEngine) -> None:
    async with site(database, StreamConfig(max_streams=2)) as here:
        first, _ = await here.client(), await here.client()

        refused = await here.client()
        first.kill()
        await until(lambda: here.manager.streams == 1, "the first one has left")
        fourth = await here.client()

        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert fourth.status == 200


BAD_IDS = ["", "x", "-1", "1.0", "0x1", "+1", "１", "1" * 19, "1 2", "1, 2"]  # noqa: RUF001
BAD_URLS: list[dict[str, Any]] = [
    {"last_event_id": "x"},
    {"last_event_id": ["1", "2"]},
    {"last_event_id": "1\r\nid: 5"},
    {"type": ""},
    {"type": "*.placed"},
    {"type": "order.placed\r\n\r\ndata: {}"},
    {"type": "x" * 256},
    {"aggregate_id": "a\nb"},
    {"aggregate_type": "a\x00"},
    {"aggregate_id": [str(n) for n in range(101)]},
    {"from_": "yesterday"},
    {"from_": ["now", "start"]},
]


async def test_requests_that_make_no_sense_are_refused(database: AsyncEngine) -> None:
    async with site(database) as here:
        by_header = [await here.resume(number) for number in BAD_IDS if number.isascii()]
        by_url = [await here.client(**parameters) for parameters in BAD_URLS]
        by_url += [await here.client(last_event_id=number) for number in BAD_IDS]

        for client in (*by_header, *by_url):
            assert client.status == 400, client.parameters
            assert client.headers["content-type"] == "text/plain; charset=utf-8"
            assert len(client.body.splitlines()) == 1
        assert here.manager.streams == 0


async def test_other_methods_begin_no_stream(database: AsyncEngine) -> None:
    async with site(database) as here:
        head, options, *others = [
            await here.connect(Client(here.port), method=method)
            for method in ("HEAD", "OPTIONS", "POST", "PUT", "DELETE")
        ]

        assert (head.status, head.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        assert [other.status for other in others] == [405, 405, 405]
        assert here.manager.streams == 0


async def test_row_of_another_producer_cannot_forge_fields(database: AsyncEngine) -> None:
    async with site(database) as here:
        client = await here.client()
        forged = "x\nid: 99\ndata: forged\n\n"
        await run(
            database,
            "INSERT INTO outbox (id, sink, lane, aggregate_key, event_type, aggregate_type,"
            " aggregate_id, payload, metadata, occurred_at) VALUES ("
            "'0190163d8694739b9d0b12b3c4d5e6f7', 'stream', 1, 1, :kind, 'x', :kind,"
            " '{\n\"n\": 5\n}', '{}', '2026-01-01 00:00:00.000000')",
            kind=forged,
        )
        (first,) = await client.take(1)
        await here.happen(6)
        (second,) = await client.take(1)

        assert (first.id, first.type, first.n) == (1, "message", 5)
        assert (first.data["type"], first.data["subject"]) == (forged, forged)
        assert (second.id, second.n) == (2, 6)


async def test_outage_of_the_database_is_silence_and_no_end(services: Services) -> None:
    server: Server = services.another("postgres")
    engine = create_async_engine(server.url.replace("postgresql", "postgresql+asyncpg", 1))
    try:
        await schema.create_all(engine)
        config = StreamConfig(keep_alive=timedelta(milliseconds=100))
        async with site(engine, config) as here:
            client = await here.client()
            await here.happen(1)
            await client.take(1)

            await asyncio.to_thread(server.kill)
            await until(lambda: here.manager.problem is not None, "the outage was noticed")
            heard = client.parser.comments
            meanwhile = await here.resume(0, type="thing.*")
            await client.until(lambda: client.parser.comments > heard + 3)
            await asyncio.to_thread(server.start)
            await engine.dispose()
            await here.happen(2)

            await client.take(1)
            await meanwhile.take(2)
            assert numbers(client) == numbers(meanwhile) == [1, 2]
    finally:
        await engine.dispose()
        await asyncio.to_thread(server.stop)


async def test_notifications_are_sent_only_for_stores_that_announce(postgres: AsyncEngine) -> None:
    heard = asyncio.Event()
    async with relay_for(postgres):
        events = SqlDeliveredEvents(postgres, sink="stream")
        connected = await events.open(lambda _word: heard.set())
        heard.clear()

        await record(postgres, happened(1))

        async with asyncio.timeout(30):
            await heard.wait()
        assert "notified" in connected
        await events.close()


async def test_reader_needs_no_more_than_select(postgres: AsyncEngine) -> None:
    role = f"reader_{postgres.url.database}"
    await run(postgres, f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    await run(postgres, f"GRANT SELECT ON outbox, outbox_sinks TO {role}")
    limited = create_async_engine(postgres.url.set(username=role, password="reader"))
    try:
        async with (
            relay_for(postgres),
            StreamManager(SqlDeliveredEvents(limited, sink="stream")) as manager,
            aclosing(manager.connect(since="start")) as stream,
        ):
            await record(postgres, happened(1))
            texts = [await anext(stream), await anext(stream)]
    finally:
        await limited.dispose()

    assert b"thing.happened" in texts[1]


@pytest.mark.fault("D14")
def test_channel_of_readers_is_never_too_long() -> None:
    assert OutboxNames().delivered_channel == "outbox_channel_delivered"
    assert len(OutboxNames(channel="c" * 63).delivered_channel) == 63


async def test_payloads_are_not_logged(
    database: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "outrider")
    async with site(database) as here:
        client = await here.client()
        await here.happen(1, text="canary-payload")
        await client.take(1)

    assert "canary-payload" not in caplog.text


async def test_mounted_application_serves_the_same_stream(database: AsyncEngine) -> None:
    async def authorize(request: Request) -> bool:
        return True

    manager = StreamManager(SqlDeliveredEvents(database))
    sent: list[Any] = []
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    app = stream_app(manager, authorize=authorize)
    async with manager:
        await app(scope, receive, send)

        with pytest.raises(RuntimeError, match="websocket"):
            await app({"type": "websocket"}, receive, send)

    assert sent[0]["status"] == 200
    assert manager.streams == 0


async def test_server_shuts_down_at_once_although_streams_are_open(
    database: AsyncEngine, tmp_path: Path
) -> None:
    url = database.url.render_as_string(hide_password=False)
    process = SiteProcess(url, tmp_path / "server.log", relay=True)
    try:
        await process.started()
        clients = [await Client(process.port).open() for _ in range(20)]
        await record(database, happened(1))
        for client in clients:
            await client.take(1)

        process.terminate()
        for client in clients:
            await client.ended()
        await process.ended()

        log = process.log.read_text()
        assert "Finished server process" in log
        assert "Traceback" not in log
        for client in clients:
            client.kill()
    finally:
        process.kill()


async def test_all_web_processes_see_everything(database: AsyncEngine, tmp_path: Path) -> None:
    url = database.url.render_as_string(hide_password=False)
    processes = [SiteProcess(url, tmp_path / f"{n}.log") for n in range(2)]
    try:
        for process in processes:
            await process.started()
        clients = [await Client(process.port).open() for process in processes]

        async with relay_for(database):
            for n in range(0, 300, 10):
                events = [happened(k, f"a{k % 10}") for k in range(n, n + 10)]
                await record(database, *events)
            for client in clients:
                await client.take(150)
                client.kill()
            # Each goes on at the other one.
            crossed = [
                await Client(process.port).open(client.messages[149].id)
                for process, client in zip(processes, reversed(clients), strict=True)
            ]
            for client in crossed:
                await client.take(150)
                client.kill()

        for first, second in zip(reversed(clients), crossed, strict=True):
            ids = [m.id for m in (*first.messages[:150], *second.messages)]
            assert ids == list(range(1, 301))
            assert sorted(m.n for m in (*first.messages[:150], *second.messages)) == list(
                range(300)
            )
    finally:
        for process in processes:
            process.kill()


ROWS = """
INSERT INTO outbox (id, sink, lane, aggregate_key, event_type, aggregate_type, aggregate_id,
    payload, occurred_at, status, delivery_number, published_at)
SELECT gen_random_uuid(), CASE WHEN n % 4 = 0 THEN 'default' ELSE 'stream' END, n % 64, n % 5000,
    'thing.happened', 'thing', (n % 5000)::text, '{}', now(), 'published', n, now()
FROM generate_series(1, 200000) AS n ORDER BY random()
"""


@pytest.fixture(scope="module")
def psql(services: Services) -> Any:
    url, server = create_database(services), services.postgres

    def run(sql: str) -> str:
        command = (server.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url)
        return server.run(*command, stdin=sql)

    run(";".join(schema.statements("postgresql", OutboxNames())))
    run(ROWS)
    run("INSERT INTO outbox_sinks VALUES ('stream', 200000)")
    run("VACUUM ANALYZE outbox")
    return run


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_resuming_on_a_large_table_walks_the_index(psql: Any, mode: str) -> None:
    reader: Any = SqlDeliveredEvents(create_async_engine("postgresql+asyncpg://nowhere/x"))
    explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE"

    page = psql(
        f"SET plan_cache_mode = {mode}; PREPARE after AS {reader._after};"
        f"{explain} after ('stream', 100000, 100)"
    )
    bounds = psql(
        f"SET plan_cache_mode = {mode}; PREPARE bounds AS {reader._bounds};"
        f"{explain} bounds ('stream')"
    )

    for plan in (page, bounds):
        assert "using outbox_delivered" in plan
        assert "Seq Scan on outbox" not in plan.replace("Seq Scan on outbox_sinks", "")
        assert "Sort" not in plan


def test_resuming_on_a_large_sqlite_table_walks_the_index(tmp_path: Path) -> None:
    file = tmp_path / "outbox.db"
    reader: Any = SqlDeliveredEvents(create_async_engine(f"sqlite+aiosqlite:///{file}"))
    with sqlite3.connect(file) as db:
        for statement in schema.statements("sqlite", OutboxNames()):
            db.execute(statement)
        db.executemany(
            "INSERT INTO outbox (id, sink, lane, aggregate_key, event_type, aggregate_type,"
            " aggregate_id, payload, occurred_at, status, delivery_number)"
            " VALUES (?, ?, 1, 1, 'thing.happened', 'thing', 'a', '{}', '2026', 'published', ?)",
            ((f"{n:032x}", "default" if n % 4 == 0 else "stream", n) for n in range(200_000)),
        )
        db.execute("ANALYZE")
        values = {"sink": "stream", "delivery_number": 100_000, "limit": 100}

        plans = [
            "; ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values))
            for statement in (reader._after, reader._bounds)
        ]
        rows = db.execute(reader._after, values).fetchall()
    db.close()

    assert all("outbox_delivered" in plan and "B-TREE" not in plan for plan in plans), plans
    assert [row[0] for row in rows[:4]] == [100_001, 100_002, 100_003, 100_005]

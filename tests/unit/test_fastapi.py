"""FastAPI: what starts and stops when, and what events of a request carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from outrider import (
    DatabaseUnavailable,
    DomainEvent,
    EventConsumer,
    EventMetadata,
    InMemoryEventBus,
    OutboxRelay,
)
from outrider.events.context import current_metadata
from outrider.integrations.fastapi import (
    EventContextMiddleware,
    RequestEvents,
    RequestMetadata,
    health_router,
    outrider_lifespan,
)
from outrider.lifecycle import BackgroundService
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore
from tests.support.canary import CANARY
from tests.support.doubles import RecordingHandler
from tests.support.until import until


class Part(BackgroundService):
    def __init__(self, name: str, happened: list[str]) -> None:
        super().__init__()
        self._grace = timedelta(seconds=5)
        self._name, self._happened = name, happened
        self.fail = asyncio.Event()

    async def _run(self, opened: asyncio.Event) -> None:
        self._happened.append(f"{self._name} starts")
        opened.set()
        failing = asyncio.create_task(self.fail.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        stopping.cancel()
        self._happened.append(f"{self._name} stops")


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_parts_stop_in_reverse_before_the_application_closes_what_they_need() -> None:
    happened: list[str] = []

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        happened.append("container opens")
        yield {"container": 1}
        happened.append("container closes")

    parts = [Part("relay", happened), Part("consumer", happened)]
    app = FastAPI()

    async with outrider_lifespan(*parts, within=own)(app) as state:
        assert state == {"container": 1}

    assert happened == [
        "container opens",
        "relay starts",
        "consumer starts",
        "consumer stops",
        "relay stops",
        "container closes",
    ]


async def test_readiness_names_a_part_that_does_not_run() -> None:
    part = Part("relay", [])
    app = FastAPI()
    app.include_router(health_router([part]))

    async with client(app) as http:
        before = await http.get("/readyz")
        async with part:
            ready = await http.get("/readyz")
            part.fail.set()
            while not (ended := await http.get("/readyz")).is_error:  # noqa: ASYNC110
                await asyncio.sleep(0)

    assert (before.status_code, before.json()["problems"]) == (503, ["Part was not started"])
    assert (ready.status_code, ready.json()["problems"]) == (200, [])
    assert (ended.status_code, ended.json()["problems"]) == (503, ["Part has ended"])


async def test_application_stays_ready_while_only_its_broker_is_away_and_says_so() -> None:
    broker = MemoryBroker()
    broker.stop()
    relay = OutboxRelay(MemoryOutboxStore(), broker.publisher())
    consumer = EventConsumer(broker.source(), [("order.placed", RecordingHandler())])
    app = FastAPI()
    app.include_router(health_router([relay, consumer]))

    async with client(app) as http, relay:
        consuming = asyncio.create_task(consumer.run())
        await until(lambda: relay.problem and consumer.problem == "the broker is unavailable")
        ready = await http.get("/readyz")
        await consumer.stop()
        await consuming

    assert ready.status_code == 200
    problems = ["sink default is unavailable", "the broker is unavailable"]
    assert ready.json() == {"status": "ready", "problems": problems}


async def test_application_is_not_ready_while_the_database_is_away() -> None:
    store: Any = MemoryOutboxStore()
    relay = OutboxRelay(store, InMemoryEventBus())
    app = FastAPI()
    app.include_router(health_router([relay]))

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("away")

    store.claim = away
    async with client(app) as http, relay:
        await until(lambda: relay.problem)
        answer = await http.get("/readyz")

    assert (answer.status_code, answer.json()["problems"]) == (503, ["the database is unavailable"])


async def test_event_of_a_request_that_flushed_nothing_is_not_in_the_bus_of_the_next() -> None:
    app = FastAPI()

    @app.get("/emit")
    async def emit(bus: RequestEvents) -> int:
        bus.emit(DomainEvent("order.placed", "order", 1, {}))
        return bus.event_count

    async with client(app) as http:
        counts = [(await http.get("/emit")).json() for _ in range(2)]

    assert counts == [1, 1]


async def test_liveness_fails_when_a_part_has_ended_by_itself_and_not_when_it_was_stopped() -> None:
    failing, stopped = Part("relay", []), Part("consumer", [])
    await failing.start()
    await stopped.start()
    apps = {part: FastAPI() for part in (failing, stopped)}
    for part, app in apps.items():
        app.include_router(health_router([part]))

    failing.fail.set()
    await until(lambda: failing.has_failed)
    await stopped.stop()
    answers = []
    for app in apps.values():
        async with client(app) as http:
            answers.append(await http.get("/livez"))

    assert [answer.status_code for answer in answers] == [503, 200]


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    app.add_middleware(EventContextMiddleware, user_of=lambda scope: CANARY)

    @app.get("/metadata")
    async def metadata(asked_for: RequestMetadata) -> dict[str, Any]:
        now: EventMetadata = current_metadata()
        assert asked_for is now
        return {
            "correlation_id": now.correlation_id,
            "traceparent": now.traceparent,
            "user": now.user_id == CANARY,
        }

    @app.get("/bus")
    async def bus(first: RequestEvents, second: RequestEvents) -> bool:
        return first is second

    return app


async def test_events_of_a_request_carry_its_id_trace_and_user(app: FastAPI) -> None:
    sent = {"X-Request-ID": "r-1", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}

    async with client(app) as http:
        answer = await http.get("/metadata", headers=sent)

    assert answer.json() == {
        "correlation_id": "r-1",
        "traceparent": sent["traceparent"],
        "user": True,
    }
    assert answer.headers["x-request-id"] == "r-1"
    assert current_metadata().correlation_id is None


@pytest.mark.parametrize("bad", ["x" * 500, "", "a\x01b"])
async def test_request_without_a_usable_id_gets_one(app: FastAPI, bad: str) -> None:
    async with client(app) as http:
        one = await http.get("/metadata", headers={"X-Request-ID": bad})
        two = await http.get("/metadata")

    ids = [one.json()["correlation_id"], two.json()["correlation_id"]]
    assert len({*ids, bad}) == 3
    assert one.headers["x-request-id"] == ids[0]


async def test_one_request_has_one_bus(app: FastAPI) -> None:
    async with client(app) as http:
        assert (await http.get("/bus")).json() is True

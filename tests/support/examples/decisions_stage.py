"""The decisions example as its users see it: HTTP in front, its processes behind, its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import redis

from outrider import EventEnvelope
from outrider.brokers.redis import RedisPublisher
from tests.support.databases import Database
from tests.support.examples.serving import MAX_WAIT_S
from tests.support.processes.relay_process import RelayProcess
from tests.support.until import wait_until

STREAM, LETTERS = "decisions", "decisions.dlq"
CONSUMER = "examples.decisions.consumer:consumer"


class Decisions:
    """One user of the API, and a look into the tables behind it."""

    def __init__(self, url: str, database: Database, user_id: str = "") -> None:
        self.database, self.user_id = database, user_id or f"user-{uuid4().hex[:8]}"
        self.http = httpx.Client(
            base_url=url, headers={"X-User-ID": self.user_id}, timeout=MAX_WAIT_S
        )

    def create(self, title: str = "Move?", **headers: str) -> str:
        answer = self.http.post("/sessions", json={"title": title}, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def change(self, session_id: str, **changes: Any) -> httpx.Response:
        return self.http.patch(f"/sessions/{session_id}", json=changes)

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.http.get("/sessions").json())

    def dashboard(self) -> dict[str, tuple[str, bool, int]]:
        entries = self.http.get("/dashboard").json()
        return {e["session_id"]: (e["title"], e["archived"], e["events"]) for e in entries}

    def until_shown(self, session_id: str, expected: tuple[str, bool, int]) -> None:
        shown = wait_until(lambda: self.dashboard().get(session_id) == expected, MAX_WAIT_S)
        assert shown, (self.dashboard(), self.events())

    def events(self) -> list[tuple[str, str]]:
        sql = "SELECT event_type, status FROM outbox ORDER BY position"
        return [tuple(row) for row in self.database.run(sql)]

    def marks(self) -> list[str]:
        sql = "SELECT handler_name FROM processed_events ORDER BY processed_at"
        return [name.rpartition(".")[2] for (name,) in self.database.run(sql)]


@dataclass
class Backstage:
    """Relay and consumer as processes, over one Redis that starts empty."""

    database: Database
    redis_url: str
    folder: Path
    processes: list[RelayProcess] = field(default_factory=list)

    @contextmanager
    def running(self, *command: str, **settings: str) -> Iterator[RelayProcess]:
        environment = {
            "DATABASE_URL": self.database.url,
            "REDIS_URL": self.redis_url,
            "OUTBOX_TO": self.redis_url,
            "OUTBOX_DESTINATION": STREAM,
            **settings,
        }
        log = self.folder / f"{command[0]}-{uuid4().hex[:6]}.log"
        process = RelayProcess(environment, log, command)
        self.processes.append(process)
        try:
            assert wait_until(lambda: process.is_ready, MAX_WAIT_S), process.text
            yield process
            if process.is_alive:
                process.terminate()
                assert wait_until(lambda: not process.is_alive, MAX_WAIT_S), process.text
                assert process.exit_code == 0, process.text
        finally:
            process.kill()

    def relay(self) -> AbstractContextManager[RelayProcess]:
        return self.running("relay", "--audit")

    def consumer(self, app: str = CONSUMER) -> AbstractContextManager[RelayProcess]:
        return self.running("consume", app, "--audit")

    @property
    def said(self) -> str:
        return "".join(process.text for process in self.processes)

    def ask(self, work: Callable[[Any], Any]) -> Any:
        with redis.Redis.from_url(self.redis_url, decode_responses=True) as server:
            return work(server)

    def forget(self) -> None:
        self.ask(lambda server: server.delete(*server.keys(f"{STREAM}*"), "nothing"))

    def letters(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.ask(lambda server: server.xrange(LETTERS))]

    def deliver_again(self) -> None:
        """All that the stream holds, once more, as a relay does after a crash."""
        for _, fields in self.ask(lambda server: server.xrange(STREAM)):
            self.ask(lambda server, fields=fields: server.xadd(STREAM, fields))

    def until_handled(self, count: int) -> None:
        """Until the consumer has acknowledged this many entries, and has no more in hand."""

        def done(server: Any) -> bool:
            groups = server.xinfo_groups(STREAM) if server.exists(STREAM) else []
            read = [(g["entries-read"], g["pending"]) for g in groups]
            return read == [(count, 0)]

        assert wait_until(lambda: self.ask(done), MAX_WAIT_S), self.said

    def send(self, *envelopes: EventEnvelope) -> None:
        """As anybody could who may write to the stream."""
        asyncio.run(_send(RedisPublisher(self.redis_url, stream=STREAM), envelopes))


async def _send(publisher: RedisPublisher, envelopes: Sequence[EventEnvelope]) -> None:
    try:
        await publisher.publish_all(envelopes)
    finally:
        await publisher.close()

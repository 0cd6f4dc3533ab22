"""The event logger seen by a client: its HTTP API, its stream and its rows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit
from uuid import UUID

import httpx

from tests.support.databases import Database
from tests.support.examples.serving import MAX_WAIT_S
from tests.support.pages.sse import Client, Message
from tests.support.until import wait_until

_ROWS = """
SELECT id, aggregate_id, status, retry_count, next_retry_at, last_error, delivery_number
FROM event_outbox ORDER BY position
"""


class Row(NamedTuple):
    id: UUID
    channel: str
    status: str
    retry_count: int
    next_retry_at: Any
    last_error: str | None
    delivery_number: int | None


def rows_in(database: Database) -> list[Row]:
    return [Row(UUID(str(row[0])), *row[1:]) for row in database.run(_ROWS)]


class Logger:
    """One user of a running application."""

    def __init__(self, url: str, database: Database) -> None:
        self.url, self.database = url, database
        self.http = httpx.Client(base_url=url, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def send(self, text: str, channel: str = "lobby") -> dict[str, Any]:
        answer = self.http.post("/messages", json={"channel": channel, "text": text})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def send_all(self, channels: Iterable[str], texts: Iterable[str]) -> None:
        """All channels at once, each in order."""
        texts = list(texts)

        def fill(channel: str) -> None:
            for text in texts:
                self.send(text, channel)

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, channels))

    def row(self, channel: str) -> Row:
        """The newest of a channel."""
        return [row for row in rows_in(self.database) if row.channel == channel][-1]

    def failed(self, channel: str) -> list[dict[str, Any]]:
        answer = self.http.get("/failed").raise_for_status()
        return [event for event in answer.json() if event["aggregate_id"] == channel]

    def block(self, word: str) -> None:
        assert self.http.put(f"/blocked-words/{word}").status_code == 204

    def allow(self, word: str) -> None:
        assert self.http.delete(f"/blocked-words/{word}").status_code == 204

    def retry(self, **parameters: str) -> int:
        answer = self.http.post("/failed/retry", params=parameters).raise_for_status()
        return int(answer.json()["events"])

    def numbers(self) -> dict[str, float]:
        return numbers_of(self.http.get("/metrics").raise_for_status().text)

    @asynccontextmanager
    async def stream(
        self, last_event_id: int | None = None, **parameters: Any
    ) -> AsyncIterator[Client]:
        client = Client(urlsplit(self.url).port or 80, **parameters)
        try:
            yield await client.open(last_event_id)
        finally:
            client.kill()

    def eventually_waits(self, channel: str) -> Row:
        """For another try."""
        seen: list[Row] = []

        def waits() -> bool:
            seen.append(self.row(channel))
            return seen[-1].status == "pending" and seen[-1].retry_count > 0

        assert wait_until(waits, MAX_WAIT_S), seen[-1]
        return seen[-1]

    def eventually_fails(self, channel: str) -> Row:
        assert wait_until(lambda: self.row(channel).status == "failed", MAX_WAIT_S)
        return self.row(channel)


def numbers_of(metrics: str) -> dict[str, float]:
    """Each line by its name with the labels, as in the text format."""
    lines = re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", metrics, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def texts(messages: Iterable[Message], channel: str | None = None) -> list[str]:
    return [
        message.data["data"]["text"]
        for message in messages
        if channel in (None, message.data["subject"])
    ]


def ids(messages: Iterable[Message]) -> list[UUID]:
    return [UUID(message.data["id"]) for message in messages]

"""The messaging example seen by a client: its HTTP API and its rows."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Self
from uuid import uuid4

import httpx
from sqlalchemy import text

from tests.support.databases import Database

FUTURE = "2031-01-05T08:00:00Z"
USER = str(uuid4())


class Event(NamedTuple):
    type: str
    payload: dict[str, Any]
    status: str
    retry_count: int


def group_message(**changes: Any) -> dict[str, Any]:
    ids = {name: str(uuid4()) for name in ("account_id", "channel_id", "template_id")}
    return {**ids, "contact_group_ids": [str(uuid4()), str(uuid4())], **changes}


def scheduled_message(**changes: Any) -> dict[str, Any]:
    ids = {name: str(uuid4()) for name in ("account_id", "channel_id", "template_id")}
    return {**ids, "scheduled_at": FUTURE, "timezone": "Europe/Berlin", **changes}


def daily(**changes: Any) -> dict[str, Any]:
    return scheduled_message(**{"is_recurring": True, "recurrence_rule": "FREQ=DAILY", **changes})


class Messaging:
    """One user of a running application."""

    def __init__(self, url: str, database: Database) -> None:
        self.url, self.database = url, database
        self.http = httpx.Client(base_url=url, headers={"X-User-ID": USER}, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def create(self, kind: str, message: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(f"/{kind}-messages", json=message)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def change(self, kind: str, message: dict[str, Any], **changes: Any) -> dict[str, Any]:
        answer = self.http.patch(f"/{kind}-messages/{message['id']}", json=changes)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def events(self, message: dict[str, Any] | None = None) -> list[Event]:
        """What is in the outbox, of one message or of all, in the order of positions."""
        return events_in(self.database, message and str(message["id"]))


def events_in(database: Database, aggregate_id: str | None = None) -> list[Event]:
    statement = text(
        "SELECT event_type, payload, status, retry_count FROM outbox_events "
        "WHERE aggregate_id = :id OR :id = '' ORDER BY position"
    )
    with database.engine().connect() as connection:
        rows = connection.execute(statement, {"id": aggregate_id or ""}).all()
    return [Event(row[0], _payload(row[1]), row[2], row[3]) for row in rows]


def _payload(stored: Any) -> dict[str, Any]:
    return dict(json.loads(stored) if isinstance(stored, str) else stored)

"""The accounts example seen by a client: its HTTP API and its rows."""

from __future__ import annotations

from typing import Any, NamedTuple, Self
from uuid import UUID, uuid4

import httpx
from sqlalchemy import text

from tests.support.databases import Database
from tests.support.examples.serving import MAX_WAIT_S
from tests.support.until import wait_until


class Event(NamedTuple):
    id: str
    type: str
    status: str
    retry_count: int
    last_error: str | None


def person(**changes: Any) -> dict[str, Any]:
    return {"email": f"{uuid4().hex}@example.org", "display_name": "Ada", **changes}


class Accounts:
    """A user of a running application, with access to its database."""

    def __init__(self, url: str, database: Database) -> None:
        self.url, self.database = url, database
        self.http = httpx.Client(base_url=url, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def sign_up(self, **changes: Any) -> str:
        """Open an account; return its id."""
        answer = self.http.post("/accounts", json=person(**changes))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def profile(self, account_id: str) -> dict[str, Any] | None:
        answer = self.http.get(f"/profiles/{account_id}")
        assert answer.status_code in (200, 404), answer.text
        return dict(answer.json()) if answer.status_code == 200 else None

    def has_profile(self, account_id: str) -> bool:
        return wait_until(lambda: self.profile(account_id) is not None, MAX_WAIT_S)

    def became(self, account_id: str, status: str) -> bool:
        """Wait until the account's event has this status; return whether it has."""
        return wait_until(lambda: event_of(self.database, account_id).status == status, MAX_WAIT_S)


def event_of(database: Database, account_id: str) -> Event:
    """Of the row in the outbox that is about this account; there is one."""
    (event,) = events_in(database, account_id)
    return event


def events_in(database: Database, account_id: str = "%") -> list[Event]:
    statement = text(
        "SELECT id, event_type, status, retry_count, last_error FROM outbox "
        "WHERE aggregate_id LIKE :account ORDER BY position"
    )
    with database.engine().connect() as connection:
        rows = connection.execute(statement, {"account": account_id}).all()
    return [Event(str(UUID(str(row[0]))), *row[1:]) for row in rows]


def count(database: Database, table: str) -> int:
    ((number,),) = database.run(f"SELECT count(*) FROM {table}")  # noqa: S608 - our own tables
    return int(number)

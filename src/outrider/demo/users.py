"""Simulated users of the messaging API, which send requests all the time."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from outrider.demo.loopback import request_json
from outrider.relay.backoff import sleep_unless

if TYPE_CHECKING:
    from outrider.events.strict_json import JsonObject

_GROUP, _SCHEDULED = "group-messages", "scheduled-messages"
_NEXT_STATUSES: Final = {
    "draft": ("queued", "queued", "cancelled"),
    "queued": ("cancelled",),
    "pending": ("paused", "paused", "cancelled"),
    "paused": ("pending",),
}


class Users:
    """Call the API over HTTP, like any other client."""

    def __init__(self, api: str) -> None:
        self._api, self._user = api, str(uuid4())
        self._accounts = [str(uuid4()) for _ in range(3)]
        self._messages: deque[tuple[str, JsonObject]] = deque(maxlen=30)
        self._random = random.Random()  # noqa: S311 - not for secrets
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Send requests until `stopping` is set; ignores requests that fail."""
        while not self.stopping.is_set():
            with suppress(ConnectionError):
                await self._act()
            delay = timedelta(seconds=self._random.uniform(0.3, 1.0))
            await sleep_unless(self.stopping, delay)

    async def _act(self) -> None:
        movable = [entry for entry in self._messages if entry[1]["status"] in _NEXT_STATUSES]
        if movable and self._random.random() < 0.5:
            kind, message = self._random.choice(movable)
            await self._move(kind, message, self._random.choice(_NEXT_STATUSES[message["status"]]))
        elif self._random.random() < 0.6:
            self._messages.append((_GROUP, await self.send()))
        else:
            self._messages.append((_SCHEDULED, await self._schedule()))

    async def send(self) -> JsonObject:
        """Create a group message; only the caller changes it later."""
        groups = [str(uuid4()) for _ in range(self._random.randint(1, 4))]
        recipients = self._random.randint(5, 500)
        return await self._create(_GROUP, contact_group_ids=groups, total_recipients=recipients)

    async def queue(self, message: JsonObject) -> None:
        await self._move(_GROUP, message, "queued")

    async def _move(self, kind: str, message: JsonObject, status: str) -> None:
        message.update(await self._request("PATCH", f"{kind}/{message['id']}", {"status": status}))

    async def _schedule(self) -> JsonObject:
        return await self._create(
            _SCHEDULED,
            scheduled_at=f"2031-01-0{self._random.randint(1, 9)}T09:00:00+01:00",
            timezone="Europe/Berlin",
            is_recurring=True,
            recurrence_rule=self._random.choice(("FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,FR")),
        )

    async def _create(self, kind: str, **fields: object) -> JsonObject:
        ids = {"channel_id": str(uuid4()), "template_id": str(uuid4())}
        account = self._random.choice(self._accounts)
        return await self._request("POST", kind, {"account_id": account, **ids, **fields})

    async def _request(self, method: str, path: str, body: JsonObject) -> JsonObject:
        return dict(
            await request_json(method, f"{self._api}/{path}", body, {"X-User-ID": self._user})
        )

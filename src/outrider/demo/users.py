"""Users of the messaging API who never rest, so that there is something to see."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from outrider.demo.loopback import ask
from outrider.relay.backoff import sleep_unless

_GROUP, _SCHEDULED = "group-messages", "scheduled-messages"
_NEXT: Final = {
    "draft": ("queued", "queued", "cancelled"),
    "queued": ("cancelled",),
    "pending": ("paused", "paused", "cancelled"),
    "paused": ("pending",),
}


class Users:
    """They speak to the API over HTTP, as anybody would."""

    def __init__(self, api: str) -> None:
        self._api, self._user = api, str(uuid4())
        self._accounts = [str(uuid4()) for _ in range(3)]
        self._known: deque[tuple[str, dict[str, Any]]] = deque(maxlen=30)
        self._chance = random.Random()  # noqa: S311 - users, not secrets
        self.enough = asyncio.Event()

    async def keep_busy(self) -> None:
        """Until it is enough; a request that is not answered is forgotten."""
        while not self.enough.is_set():
            with suppress(ConnectionError):
                await self._act()
            pause = timedelta(seconds=self._chance.uniform(0.3, 1.0))
            await sleep_unless(self.enough, pause)

    async def _act(self) -> None:
        restless = [one for one in self._known if one[1]["status"] in _NEXT]
        if restless and self._chance.random() < 0.5:
            kind, message = self._chance.choice(restless)
            await self._move(kind, message, self._chance.choice(_NEXT[message["status"]]))
        elif self._chance.random() < 0.6:
            self._known.append((_GROUP, await self.send()))
        else:
            self._known.append((_SCHEDULED, await self._schedule()))

    async def send(self) -> dict[str, Any]:
        """A group message, which is the caller's to go on with."""
        groups = [str(uuid4()) for _ in range(self._chance.randint(1, 4))]
        recipients = self._chance.randint(5, 500)
        return await self._create(_GROUP, contact_group_ids=groups, total_recipients=recipients)

    async def queue(self, message: dict[str, Any]) -> None:
        await self._move(_GROUP, message, "queued")

    async def _move(self, kind: str, message: dict[str, Any], status: str) -> None:
        message.update(await self._ask("PATCH", f"{kind}/{message['id']}", {"status": status}))

    async def _schedule(self) -> dict[str, Any]:
        return await self._create(
            _SCHEDULED,
            scheduled_at=f"2031-01-0{self._chance.randint(1, 9)}T09:00:00+01:00",
            timezone="Europe/Berlin",
            is_recurring=True,
            recurrence_rule=self._chance.choice(("FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,FR")),
        )

    async def _create(self, kind: str, **more: Any) -> dict[str, Any]:
        ids = {"channel_id": str(uuid4()), "template_id": str(uuid4())}
        account = self._chance.choice(self._accounts)
        return await self._ask("POST", kind, {"account_id": account, **ids, **more})

    async def _ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return dict(await ask(method, f"{self._api}/{path}", body, {"X-User-ID": self._user}))

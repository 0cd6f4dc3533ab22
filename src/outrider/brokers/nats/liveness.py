"""Who receives for a group: it answers on a subject of the group's own, as long as it lives."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoAnswer

from outrider.brokers.nats.connection import NATS_ERRORS

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from outrider.brokers.nats.connection import Connection

# Twice, for in a cluster it takes a moment until all servers know who listens.
_LOOKS: Final = 2
_BETWEEN_LOOKS: Final = 0.25
_ANSWER: Final = 1.0
_STANDING_BY: Final = 0.8


class Liveness:
    """The server knows at once when the one who answers is gone; one that hangs is given time."""

    def __init__(self, stream: str, group: str, takeover_after: float) -> None:
        # Clients that may do little else may use their inboxes.
        self._subject = f"_INBOX.outrider.{stream}.{group}"
        self._takeover_after = takeover_after
        self._silent_since: float | None = None
        self._subscription: Subscription | None = None

    async def announce(self, connection: Connection) -> None:
        async def answer(question: Msg) -> None:
            await connection.publish(question.reply)

        self._subscription = await connection.subscribe(self._subject, cb=answer)

    async def leave(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(*NATS_ERRORS):
                await subscription.unsubscribe()

    async def is_missed(self, connection: Connection) -> bool:
        """Whether nobody answers; takes a moment in any case."""
        for _ in range(_LOOKS):
            try:
                await connection.request(self._subject, timeout=_ANSWER)
            except NoRespondersError:
                await asyncio.sleep(_BETWEEN_LOOKS)
            except NoAnswer:
                if connection.denied:
                    raise
                return self._silence()
            else:
                self._silent_since = None
                await asyncio.sleep(_STANDING_BY)
                return False
        return True

    def _silence(self) -> bool:
        """Whether there has been one for long enough."""
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        return now - self._silent_since >= self._takeover_after

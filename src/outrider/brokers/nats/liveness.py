"""Tells whether a source of the group is active: it answers probes on a subject of the group."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from outrider.brokers.nats.connection import NATS_ERRORS

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from outrider.brokers.nats.connection import Connection

# Two, since in a cluster a new subscription takes a moment to be known on all servers.
_PROBES: Final = 2
_PROBE_INTERVAL_S: Final = 0.25
_PROBE_TIMEOUT_S: Final = 1.0
_STANDBY_INTERVAL_S: Final = 0.8


class Liveness:
    """If the active source dies, the server reports at once that nobody answers. If it hangs, it
    counts as gone after `takeover_after`."""

    def __init__(self, stream: str, group: str, takeover_after: float) -> None:
        # Clients with few permissions may still use subjects of inboxes.
        self._subject = f"_INBOX.outrider.{stream}.{group}"
        self._takeover_after = takeover_after
        self._silent_since: float | None = None
        self._subscription: Subscription | None = None

    async def start_answering(self, connection: Connection) -> None:
        async def answer(probe: Msg) -> None:
            await connection.publish(probe.reply)

        self._subscription = await connection.subscribe(self._subject, cb=answer)

    async def stop_answering(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(*NATS_ERRORS):
                await subscription.unsubscribe()

    async def is_free(self, connection: Connection) -> bool:
        """Whether no source is active; always takes a moment, so that callers do not spin."""
        for _ in range(_PROBES):
            try:
                await connection.request(self._subject, timeout=_PROBE_TIMEOUT_S)
            except NoRespondersError:
                await asyncio.sleep(_PROBE_INTERVAL_S)
            except NatsTimeoutError:
                if connection.permission_error:
                    raise
                return self._was_silent_too_long()
            else:
                self._silent_since = None
                await asyncio.sleep(_STANDBY_INTERVAL_S)
                return False
        return True

    def _was_silent_too_long(self) -> bool:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        return now - self._silent_since >= self._takeover_after

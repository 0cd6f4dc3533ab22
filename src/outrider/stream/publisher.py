"""The publisher of a live stream: accepts every event, since settling delivers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.events.envelope import EventEnvelope


class StreamPublisher:
    """Accepts every event. The relay settles it then, and its row gets the delivery number that
    readers follow.

    Create the relay's store with `announce=True`, so that readers need not poll.
    """

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to disconnect from."""

    async def publish(self, envelope: EventEnvelope, /) -> None:
        """Nothing to send."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        """Nothing to send."""

    def __str__(self) -> str:
        return "live stream"

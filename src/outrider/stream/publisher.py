"""The sink of a live stream, which takes everything at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.events.envelope import EventEnvelope


class StreamPublisher:
    """Accepts every event: the number that its row gets when it is settled is what readers follow.

    The relay's store should be made with `announce=True`, so that readers need not poll.
    """

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to disconnect from."""

    async def publish(self, envelope: EventEnvelope, /) -> None:
        """It has arrived already."""

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        """They have arrived already."""

    def __str__(self) -> str:
        return "live stream"

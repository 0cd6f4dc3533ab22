"""Suspects: events that may have killed the last owner of a lane are published a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.outcomes import ClaimedEvent
    from outrider.ports import OutboxStore
    from outrider.relay.config import RelayConfig
    from outrider.relay.leases import HeldLanes


class Suspects:
    """Counts a crash against events before they are published, and takes it back afterwards.

    If this process dies meanwhile, the count stays: the next relay publishes such an event alone,
    and gives it up after `max_crashes`. So one event that kills relays is found, and only that.
    """

    def __init__(self, store: OutboxStore, lanes: HeldLanes, config: RelayConfig) -> None:
        self._store, self._lanes, self._config = store, lanes, config
        self._counted: Sequence[ClaimedEvent] = ()
        self._tried = 0

    def choose(self, batch: list[ClaimedEvent], lanes: set[int]) -> list[ClaimedEvent]:
        """The first few events of a batch; only one if a crash was counted against any of them."""
        few = batch[: max(1, self._config.batch_size // 10)]
        if any(event.crash_count for event in few):
            few = few[:1]
        self._tried += len(few)
        # The last owner had no more than one batch in flight.
        if not few or self._tried >= self._config.batch_size:
            self._lanes.recovered(lanes)
            self._tried = 0
        return few

    def is_hopeless(self, event: ClaimedEvent) -> bool:
        return event.crash_count >= self._config.max_crashes

    async def count(self, tokens: Mapping[int, int], events: Sequence[ClaimedEvent]) -> None:
        """Before they are published."""
        await self._store.adjust_crash_count(self._lanes.relay, tokens, events)
        self._counted = events

    async def settled(
        self, tokens: Mapping[int, int], not_accepted: Sequence[ClaimedEvent]
    ) -> None:
        """After they were published; a count on an accepted event does no harm."""
        if self._counted:
            self._counted = not_accepted
            await self.clear(tokens)

    async def clear(self, tokens: Mapping[int, int]) -> None:
        """This process lives, so whatever kept these events from being settled was no crash."""
        if self._counted:
            await self._store.adjust_crash_count(self._lanes.relay, tokens, self._counted, -1)
            self._counted = ()

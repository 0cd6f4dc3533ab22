"""The store suite is worth its name: stores with one fault each make it red."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from outrider.lanes import LaneLease
from outrider.outcomes import ClaimedEvent, RefusedEvent
from outrider.testing.memory_store import MemoryOutboxStore, MemoryRow
from outrider.testing.store_suite import StoreSuite
from tests.support.conformance.store_harnesses import MemoryHarness


class SettlesWithAStaleToken(MemoryOutboxStore):
    def _mine(self, relay: UUID, tokens: Mapping[int, int]) -> dict[int, MemoryRow]:
        return {row.position: row for row in self.rows if row.event.lane in tokens}


class SettlesWithAnOldTokenOfItsOwn(MemoryOutboxStore):
    def _mine(self, relay: UUID, tokens: Mapping[int, int]) -> dict[int, MemoryRow]:
        return super()._mine(relay, self._own.tokens(relay))


class CountsCrashesForStaleRelays(MemoryOutboxStore):
    async def adjust_crash_count(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        for event in events:
            self._rows[event.position].crash_count += by


class ClaimsBehindARowThatWaits(MemoryOutboxStore):
    """Skips the oldest of an aggregate, as row locks do, and takes what follows."""

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        now = self._clock()
        ready = [r for r in self.rows if r.next_retry_at is None or r.next_retry_at <= now]
        pending = [r for r in ready if r.status == "pending" and r.event.lane in lanes]
        return [row.claimed() for row in pending[:limit]]


class ClaimsTheYoungestFirst(MemoryOutboxStore):
    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        return (await super().claim(lanes, 1_000_000))[-limit:]


class ClaimsFromACursor(MemoryOutboxStore):
    """Never looks again at what it has handed out, so what was not settled is lost."""

    seen = 0

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        batch = [e for e in await super().claim(lanes, limit) if e.position > self.seen]
        self.seen = max([self.seen, *(event.position for event in batch)])
        return batch


class ClaimsForeignLanes(MemoryOutboxStore):
    async def claim(self, _lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        return await super().claim(range(64), limit)


class NeverParks(MemoryOutboxStore):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"park": False})


class ParksOverSinks(MemoryOutboxStore):
    """A failure at one sink holds up the aggregate at all of them."""

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        failed = {r.event.aggregate_id for r in self._rows.values() if r.status == "failed"}
        batch = await super().claim(lanes, limit)
        return [e for e in batch if not self._park or e.envelope.aggregate_id not in failed]


class ForgetsPending(MemoryOutboxStore):
    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        latest = self._clock() - older_than
        old = [row.position for row in self.rows if row.created_at <= latest][:limit]
        for position in old:
            del self._rows[position]
        return len(old)


class ForgetsAllAtOnce(MemoryOutboxStore):
    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        return await super().delete_published(older_than, 1_000_000)


class ForgetsOtherSinks(MemoryOutboxStore):
    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        for sink in list(self._sinks):
            await MemoryOutboxStore.delete_published(self.of_sink(sink), older_than, limit)
        return await super().delete_published(older_than, limit)


class NumbersDeliveriesBackwards(MemoryOutboxStore):
    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        unknown: Sequence[ClaimedEvent],
        /,
    ) -> int:
        return await super().settle(relay, tokens, accepted[::-1], refused, unknown)


class SettlesTwice(MemoryOutboxStore):
    def _mine(self, relay: UUID, tokens: Mapping[int, int]) -> dict[int, MemoryRow]:
        mine = super()._mine(relay, tokens)
        for row in mine.values():
            row.status = "pending"
        return mine


class CountsUnknownAsRefused(MemoryOutboxStore):
    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        unknown: Sequence[ClaimedEvent],
        /,
    ) -> int:
        more = [RefusedEvent(event, "unknown", timedelta(0)) for event in unknown]
        return await super().settle(relay, tokens, accepted, [*refused, *more], [])


class CountsDeferredAsRefused(MemoryOutboxStore):
    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        unknown: Sequence[ClaimedEvent],
        /,
    ) -> int:
        counted = [replace(item, counted=True) for item in refused]
        return await super().settle(relay, tokens, accepted, counted, unknown)


class TakesLanesWithoutANewToken(MemoryOutboxStore):
    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        for lane in self._own.lanes:
            if lane.owner != relay and (lane.owner is None or lane.expires_at < self._clock()):
                lane.token -= lane.token > 0
        return await super().lease(relay, name, duration)


class NewTokenAtEveryRenewal(MemoryOutboxStore):
    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        for lane in self._own.lanes:
            lane.token += lane.owner == relay
        return await super().lease(relay, name, duration)


class ReleasesWhatOthersHold(MemoryOutboxStore):
    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        for number in range(64) if lanes is None else lanes:
            self._own.lanes[number].owner = None
        await super().release(relay, lanes)


class KeepsLanesOfTheStopped(MemoryOutboxStore):
    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        if lanes is not None:
            await super().release(relay, lanes)


class SharesNothing(MemoryOutboxStore):
    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        lease = await super().lease(relay, name, duration)
        return LaneLease(lease.lanes, lease.orphaned)


class WakesNobody(MemoryOutboxStore):
    async def open(self, _wake: Callable[[str], None], /) -> str:
        return "memory"


class CountsOtherSinks(MemoryOutboxStore):
    async def count_pending(self, most: int, /) -> int:
        return min(most, sum(row.status == "pending" for row in self._rows.values()))


FAULTS: list[tuple[type[MemoryOutboxStore], str]] = [
    (SettlesWithAStaleToken, "test_stale_relay_changes_nothing"),
    (SettlesWithAnOldTokenOfItsOwn, "test_right_owner_with_an_old_token_changes_nothing"),
    (CountsCrashesForStaleRelays, "test_stale_relay_changes_nothing"),
    (ClaimsBehindARowThatWaits, "test_refused_event_holds_back_its_aggregate_and_no_other"),
    (ClaimsTheYoungestFirst, "test_whatever_happens_order_holds_and_nothing_is_lost"),
    (ClaimsFromACursor, "test_whatever_happens_order_holds_and_nothing_is_lost"),
    (
        ClaimsForeignLanes,
        "test_claim_gives_the_oldest_in_order_and_only_of_the_lanes_asked_for",
    ),
    (NeverParks, "test_failed_event_lets_its_aggregate_go_on_or_parks_it"),
    (ParksOverSinks, "test_sink_that_refuses_does_not_hold_up_the_other"),
    (ForgetsPending, "test_only_old_published_events_are_deleted_a_few_at_a_time"),
    (ForgetsAllAtOnce, "test_only_old_published_events_are_deleted_a_few_at_a_time"),
    (ForgetsOtherSinks, "test_relay_of_one_sink_changes_nothing_of_another"),
    (NumbersDeliveriesBackwards, "test_settled_events_are_published_in_the_order_of_delivery"),
    (SettlesTwice, "test_event_is_settled_once_whoever_says_it_again"),
    (CountsUnknownAsRefused, "test_unknown_events_stay_as_they_are"),
    (CountsDeferredAsRefused, "test_deferred_event_waits_with_its_reason_and_costs_no_attempt"),
    (TakesLanesWithoutANewToken, "test_dead_relays_lanes_are_taken_with_a_new_token"),
    (NewTokenAtEveryRenewal, "test_renewed_lanes_keep_their_tokens"),
    (ReleasesWhatOthersHold, "test_stale_relay_changes_nothing"),
    (KeepsLanesOfTheStopped, "test_stopped_relays_lanes_are_free_at_once_and_not_orphaned"),
    (SharesNothing, "test_first_relay_gets_all_lanes_and_the_second_half_of_them"),
    (WakesNobody, "test_released_lanes_and_commits_wake_relays_up"),
    (CountsOtherSinks, "test_sinks_do_not_see_each_others_lanes_and_events"),
]


def runs_of(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each run, as pytest would find them."""
    for mark in getattr(test, "pytestmark", ()):
        name, values = mark.args
        yield from ({name: value} for value in values)
        return
    yield {}


async def fails(kind: type[MemoryOutboxStore], name: str) -> bool:
    """Whether such a store makes this test of the suite red."""
    test = getattr(StoreSuite, name)
    for arguments in runs_of(test):
        try:
            async with asyncio.timeout(3):
                await test(StoreSuite(), MemoryHarness(kind), **arguments)
        except Exception:
            return True
    return False


@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
async def test_fault_is_found(kind: type[MemoryOutboxStore], name: str) -> None:
    assert await fails(kind, name)


async def test_store_without_a_fault_passes() -> None:
    names = {name for name in dir(StoreSuite) if name.startswith("test_")}

    assert {name for name in names if await fails(MemoryOutboxStore, name)} == set()
    assert {name for _, name in FAULTS} <= names

"""The part of the store suite about lanes, leases and fencing tokens."""
# ruff: noqa: S101

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from outrider.lanes import LANES, LANES_FREE
from outrider.outcomes import RefusedEvent
from outrider.testing.store_suite.harness import ALL, LEASE, Relay, happened, relay_of, until

if TYPE_CHECKING:
    from outrider.testing.store_suite.harness import StoreHarness


class LeaseSuite:
    """Who leases which lanes, and which rows a relay may change."""

    async def test_first_relay_gets_all_lanes_and_the_second_half_of_them(
        self, store_harness: StoreHarness
    ) -> None:
        async with store_harness.opened() as one, store_harness.opened() as other:
            first, second = Relay(one), Relay(other)

            alone = await first.lease()
            newcomer = await second.lease()
            shared = await first.lease()

            assert set(alone.lanes) == set(ALL)
            assert newcomer.lanes == {}
            assert len(shared.surplus) == LANES // 2
            await one.release(first.id, shared.surplus)
            assert len((await second.lease()).lanes) == LANES // 2
            assert not (await first.lease()).surplus

    @pytest.mark.parametrize("count", [3, 5, 7])
    async def test_any_number_of_relays_shares_all_lanes_evenly(
        self, store_harness: StoreHarness, count: int
    ) -> None:
        async with store_harness.opened() as store:
            relays = [Relay(store) for _ in range(count)]
            for relay in relays * 3:
                await store.release(relay.id, (await relay.lease()).surplus)

            leases = [await relay.lease() for relay in relays]

            sizes = sorted(len(lease.lanes) for lease in leases)
            assert sum(sizes) == LANES
            assert sizes[-1] - sizes[0] <= 1
            assert len({lane for lease in leases for lane in lease.lanes}) == LANES

    async def test_renewed_lanes_keep_their_tokens(self, store_harness: StoreHarness) -> None:
        async with relay_of(store_harness) as relay:
            before = dict(relay.tokens)

            renewed = await relay.lease()

            assert renewed.lanes == before
            assert not renewed.orphaned

    async def test_dead_relays_lanes_are_taken_with_a_new_token(
        self, store_harness: StoreHarness
    ) -> None:
        async with relay_of(store_harness) as dead, store_harness.opened() as store:
            await store_harness.expire()

            heir = await Relay(store).lease()

            assert heir.orphaned == set(ALL)
            assert all(heir.lanes[lane] > dead.tokens[lane] for lane in ALL)

    async def test_stopped_relays_lanes_are_free_at_once_and_not_orphaned(
        self, store_harness: StoreHarness
    ) -> None:
        async with relay_of(store_harness) as stopped:
            await stopped.store.release(stopped.id, None)

            heir = await Relay(stopped.store).lease()

            assert len(heir.lanes) == LANES
            assert not heir.orphaned

    async def test_stale_relay_changes_nothing(self, store_harness: StoreHarness) -> None:
        await store_harness.record(happened(1, 2, 3))
        async with relay_of(store_harness) as zombie, store_harness.opened() as store:
            claimed = await zombie.store.claim(ALL, 10)
            await store_harness.expire()
            heir = Relay(store)
            held = (await heir.lease()).lanes

            no = [RefusedEvent(claimed[1], "no", None), RefusedEvent(claimed[2], "no", LEASE)]
            changed = await zombie.settle(claimed[:1], no)
            await zombie.adjust_crash_count(claimed)
            await zombie.store.release(zombie.id, set(ALL))
            renewed = await zombie.lease()

            assert (changed, renewed.lanes) == (0, {})
            for row in await store_harness.rows():
                assert (row.status, row.retry_count, row.crash_count) == ("pending", 0, 0)
            assert (await heir.lease()).lanes == held

    async def test_right_owner_with_an_old_token_changes_nothing(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 2))
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 10)
            relay.tokens = {lane: token - 1 for lane, token in relay.tokens.items()}

            changed = await relay.settle(claimed[:1], [RefusedEvent(claimed[1], "no", None)])

            assert changed == 0
            assert [row.status for row in await store_harness.rows()] == ["pending"] * 2

    async def test_released_lanes_and_commits_wake_relays_up(
        self, store_harness: StoreHarness
    ) -> None:
        heard: list[str] = []
        store = store_harness.store()
        await store.open(heard.append)
        try:
            await store.release(uuid4(), {1})
            await until(lambda: LANES_FREE in heard)
            heard.clear()
            await store_harness.record(happened(1))
            await until(lambda: bool(heard))
        finally:
            await store.close()

"""The part of the store suite about claims: which events a batch has, and in which order."""
# ruff: noqa: S101

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outrider.events.event import DomainEvent
from outrider.outcomes import RefusedEvent
from outrider.testing.store_suite.harness import ALL, Relay, happened, ids, relay_of, until
from outrider.testing.store_suite.history import History

if TYPE_CHECKING:
    from outrider.testing.store_suite.harness import StoreHarness


class ClaimSuite:
    """Which events a batch has, and in which order."""

    async def test_claim_gives_the_oldest_in_order_and_only_of_the_lanes_asked_for(
        self, store_harness: StoreHarness
    ) -> None:
        events = happened(*range(20), *range(20))
        await store_harness.record(events)
        async with relay_of(store_harness) as relay:
            every = await relay.store.claim(ALL, 100)
            some = await relay.store.claim({every[0].lane}, 100)
            few = await relay.store.claim(ALL, 7)

            assert ids(every) == ids(events)
            assert {event.lane for event in some} == {every[0].lane}
            lanes = {(event.envelope.aggregate_id, event.lane) for event in every}
            assert len(lanes) == 20, "an aggregate has one lane, so one relay at a time"
            assert ids(few) == ids(events[:7])
            assert [event.position for event in every] == sorted(e.position for e in every)

    async def test_claimed_event_is_what_was_recorded(self, store_harness: StoreHarness) -> None:
        event = DomainEvent("thing.happened", "thing", "ü 1", {"n": 2**70, "text": "Käse"})
        envelope = event.to_envelope().with_correlation_id("r-1").with_user_id("u-1")
        await store_harness.record([envelope])
        async with store_harness.opened() as store:
            (claimed,) = await store.claim(ALL, 10)

            assert claimed.envelope == envelope
            assert claimed.envelope.payload == event.payload
            assert (claimed.retry_count, claimed.crash_count, claimed.max_retries) == (0, 0, None)
            assert claimed.problem is None

    async def test_refused_event_holds_back_its_aggregate_and_no_other(
        self, store_harness: StoreHarness
    ) -> None:
        events = happened(1, 2, 1, 3)
        await store_harness.record(events)
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 10)

            refused = [RefusedEvent(claimed[0], "queue is full", timedelta(hours=1))]
            await relay.settle([], refused, claimed[1:])

            assert ids(await relay.store.claim(ALL, 10)) == ids([events[1], events[3]])
            rows = await store_harness.rows()
            assert [row.retry_count for row in rows] == [1, 0, 0, 0]
            assert rows[0].last_error == "queue is full"

    async def test_refused_event_comes_back_when_its_wait_is_over(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 1))
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 10)

            now = [RefusedEvent(claimed[0], "no", timedelta(0))]
            await relay.settle([], now, claimed[1:])

            again = await relay.store.claim(ALL, 10)
            assert [event.retry_count for event in again] == [1, 0]

    async def test_batch_has_the_oldest_of_each_aggregate_at_the_very_moment_waits_end(
        self, store_harness: StoreHarness
    ) -> None:
        """Unless all rows are compared with the same time, an event overtakes an earlier one."""
        events = happened(*range(150), *range(150))
        await store_harness.record(events)
        order = {event_id: n for n, event_id in enumerate(ids(events))}
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 1000)
            moments = (timedelta(milliseconds=2 * n) for n in range(150))
            waits = [RefusedEvent(e, "no", m) for e, m in zip(claimed[:150], moments, strict=True)]
            await relay.settle([], waits, claimed[150:])

            delivered: set[int] = set()

            async def all_delivered() -> bool:
                batch = await relay.store.claim(ALL, 1000)
                for number in (order[event_id] for event_id in ids(batch)):
                    assert number < 150 or number - 150 in delivered, "the second without its first"
                    delivered.add(number)
                await relay.settle(batch)
                return len(delivered) == 300

            await until(all_delivered)

    @pytest.mark.parametrize("park", [False, True])
    async def test_failed_event_lets_its_aggregate_go_on_or_parks_it(
        self, store_harness: StoreHarness, park: bool
    ) -> None:
        events = happened(1, 1, 2)
        await store_harness.record(events)
        async with relay_of(store_harness, park=park) as relay:
            claimed = await relay.store.claim(ALL, 10)

            await relay.settle([], [RefusedEvent(claimed[0], "no", None)], claimed[1:])

            statuses = [row.status for row in await store_harness.rows()]
            assert statuses == ["failed", "pending", "pending"]
            left = events[2:] if park else events[1:]
            assert ids(await relay.store.claim(ALL, 10)) == ids(left)

    @pytest.mark.parametrize("seed", range(5))
    async def test_whatever_happens_order_holds_and_nothing_is_lost(
        self, store_harness: StoreHarness, seed: int
    ) -> None:
        chance = random.Random(seed)  # noqa: S311 - to repeat it, not for secrets
        async with store_harness.opened() as one, store_harness.opened() as other:
            history = History(store_harness, [Relay(one), Relay(other)], chance)
            await history.begin()
            for _ in range(60):
                await history.step()
            await history.drain()

            assert history.out_of_order == []
            assert {row.status for row in await store_harness.rows()} <= {"published"}
            assert history.delivered.keys() == set(history.recorded)

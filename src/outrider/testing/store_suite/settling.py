"""The part of the store suite about settling events and deleting published rows."""
# ruff: noqa: S101

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from outrider.outcomes import RefusedEvent
from outrider.store.schema.tables import MAX_ATTEMPT_CHARS
from outrider.testing.store_suite.harness import ALL, happened, ids, relay_of

if TYPE_CHECKING:
    from outrider.testing.store_suite.harness import StoreHarness


class SettleSuite:
    """Settling events, and deleting published rows."""

    async def test_settled_events_are_published_in_the_order_of_delivery(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(*range(5)))
        async with relay_of(store_harness) as relay:
            for size in (3, 2):
                assert await relay.settle(await relay.store.claim(ALL, size)) == size

            rows = await store_harness.rows()
            assert [row.status for row in rows] == ["published"] * 5
            assert [row.delivery_number for row in rows] == [1, 2, 3, 4, 5]
            assert await relay.store.claim(ALL, 10) == []

    async def test_event_is_settled_once_whoever_says_it_again(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 2))
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 10)
            await relay.settle(claimed[:1], [RefusedEvent(claimed[1], "no", None)])
            before = await store_harness.rows()

            crossed = [RefusedEvent(claimed[0], "no", None)]
            changed = await relay.settle(claimed[1:], crossed)

            assert changed == 0
            assert await store_harness.rows() == before

    async def test_unknown_events_stay_as_they_are(self, store_harness: StoreHarness) -> None:
        events = happened(1, 1, 2)
        await store_harness.record(events)
        async with relay_of(store_harness) as relay:
            changed = await relay.settle([], [], await relay.store.claim(ALL, 10))

            assert changed == 0
            assert ids(await relay.store.claim(ALL, 10)) == ids(events)
            assert {row.retry_count for row in await store_harness.rows()} == {0}

    async def test_deferred_event_waits_with_its_reason_and_costs_no_attempt(
        self, store_harness: StoreHarness
    ) -> None:
        events = happened(1, 1, 2)
        await store_harness.record(events)
        async with relay_of(store_harness) as relay:
            first, *_ = await relay.store.claim(ALL, 10)

            waits = RefusedEvent(first, "full", timedelta(hours=1), counted=False)
            assert await relay.settle([], [waits]) == 1

            row = (await store_harness.rows())[0]
            assert (row.status, row.retry_count, row.last_error) == ("pending", 0, "full")
            assert ids(await relay.store.claim(ALL, 10)) == ids(events[2:])

    async def test_last_ten_attempts_are_kept_with_number_time_and_reason(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 2))
        at_once, reason = timedelta(0), "no" * 1_000
        async with relay_of(store_harness) as relay:
            for number in range(1, 13):
                claimed = (await relay.store.claim(ALL, 10))[0]
                await relay.settle([], [RefusedEvent(claimed, f"{number}: {reason}", at_once)])
                waits = [RefusedEvent(claimed, "not now", at_once, counted=False)]
                await relay.settle([], waits)

            refused, untouched = await store_harness.rows()
            attempts = refused.attempts or ()
            assert [attempt["attempt"] for attempt in attempts] == list(range(3, 13))
            assert attempts[0]["reason"].startswith("3: nono")
            assert all(len(attempt["reason"]) == MAX_ATTEMPT_CHARS for attempt in attempts)
            times = [datetime.fromisoformat(attempt["at"]) for attempt in attempts]
            assert times == sorted(times)
            assert abs(times[-1] - datetime.now(UTC)) < timedelta(minutes=5)
            assert untouched.attempts is None

    async def test_crashes_are_counted_before_the_attempt_and_taken_back(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 2))
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 10)

            await relay.adjust_crash_count(claimed)
            await relay.adjust_crash_count(claimed[1:], -1)

            assert [row.crash_count for row in await store_harness.rows()] == [1, 0]
            assert [event.crash_count for event in await relay.store.claim(ALL, 10)] == [1, 0]

    async def test_only_old_published_events_are_deleted_a_few_at_a_time(
        self, store_harness: StoreHarness
    ) -> None:
        events = happened(*range(6))
        await store_harness.record(events)
        async with relay_of(store_harness) as relay:
            claimed = await relay.store.claim(ALL, 4)
            await relay.settle(claimed[1:3], [RefusedEvent(claimed[3], "no", None)])
            await relay.settle(claimed[:1])

            assert await relay.store.delete_published(timedelta(days=1), 10) == 0
            assert await relay.store.delete_published(timedelta(0), 2) == 2
            first_of_all = (await store_harness.rows())[0]
            assert first_of_all.event_id == events[0].event_id, "the oldest delivery goes first"
            assert await relay.store.delete_published(timedelta(0), 2) == 1
            statuses = [row.status for row in await store_harness.rows()]
            assert statuses == ["failed", "pending", "pending"]

    async def test_pending_events_are_counted_up_to_a_limit(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 2, 3))
        async with relay_of(store_harness) as relay:
            await relay.settle(await relay.store.claim(ALL, 1))

            assert await relay.store.count_pending(10) == 2
            assert await relay.store.count_pending(1) == 1

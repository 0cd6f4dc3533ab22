"""The part of the store suite about one event for several sinks."""
# ruff: noqa: S101

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.lanes import LANES
from outrider.outcomes import RefusedEvent
from outrider.testing.store_suite.harness import ALL, Relay, happened, ids, relay_of

if TYPE_CHECKING:
    from outrider.testing.store_suite.harness import StoreHarness


class SinkSuite:
    """One event for several sinks: each sink has its own row and its own status."""

    async def test_sinks_do_not_see_each_others_lanes_and_events(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1), sinks=["other"])
        async with store_harness.opened() as mine, store_harness.opened("other") as other:
            assert len((await Relay(mine).lease()).lanes) == LANES
            assert len((await Relay(other).lease()).lanes) == LANES
            assert await mine.claim(ALL, 10) == []
            assert len(await other.claim(ALL, 10)) == 1
            assert (await mine.count_pending(10), await other.count_pending(10)) == (0, 1)

    async def test_event_for_two_sinks_has_a_row_of_the_same_id_for_each(
        self, store_harness: StoreHarness
    ) -> None:
        events = happened(1, 2, 1)
        await store_harness.record(events, sinks=["a", "b"])

        async with store_harness.opened("a") as a, store_harness.opened("b") as b:
            assert ids(await a.claim(ALL, 10)) == ids(events)
            assert ids(await b.claim(ALL, 10)) == ids(events)
        for sink in ("a", "b"):
            assert [row.event_id for row in await store_harness.rows(sink)] == ids(events)

    async def test_sink_that_refuses_does_not_hold_up_the_other(
        self, store_harness: StoreHarness
    ) -> None:
        events = happened(1, 1)
        await store_harness.record(events, sinks=["a", "b"])
        async with (
            relay_of(store_harness, "a", park=True) as a,
            relay_of(store_harness, "b", park=True) as b,
        ):
            first, second = await a.store.claim(ALL, 10)
            await a.settle([], [RefusedEvent(first, "no", None)], [second])

            assert ids(await b.store.claim(ALL, 10)) == ids(events)
            assert await b.settle(await b.store.claim(ALL, 10)) == 2
            assert await a.store.claim(ALL, 10) == []

        assert [row.status for row in await store_harness.rows("a")] == ["failed", "pending"]
        in_b = await store_harness.rows("b")
        assert [(row.status, row.delivery_number) for row in in_b] == [
            ("published", 1),
            ("published", 2),
        ]

    async def test_relay_of_one_sink_changes_nothing_of_another(
        self, store_harness: StoreHarness
    ) -> None:
        await store_harness.record(happened(1, 2), sinks=["a", "b"])
        async with relay_of(store_harness, "a") as a, relay_of(store_harness, "b") as b:
            in_b = await b.store.claim(ALL, 10)
            await b.settle(in_b)
            await a.store.delete_published(timedelta(0), 10)

            changed = await a.settle(await a.store.claim(ALL, 10))

            assert changed == 2
            assert len(await store_harness.rows("b")) == 2
            assert [row.delivery_number for row in await store_harness.rows("a")] == [1, 2]

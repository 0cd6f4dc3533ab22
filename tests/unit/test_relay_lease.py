"""The relay's lease when it runs out while a batch is with the sink."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from outrider import DomainEvent, OutboxRelay, RelayConfig
from outrider.lanes import LaneLease
from outrider.testing.memory_store import MemoryOutboxStore

LEASE = timedelta(seconds=1)


class SlowToRenew(MemoryOutboxStore):
    """Renews no lease before `go_on`, except the first."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.renewals = asyncio.Event(), 0

    async def lease(self, relay: UUID, name: str, duration: timedelta, /) -> LaneLease:
        if self.renewals:
            await self.go_on.wait()
        self.renewals += 1
        return await super().lease(relay, name, duration)


class SlowToEnd:
    """Hangs with the first batch, and when given up lets the lease be renewed before it ends."""

    def __init__(self, store: SlowToRenew) -> None:
        self._store, self.got = store, 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, envelope: Any, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Any, /) -> None:
        if not self._store.go_on.is_set():
            try:
                await asyncio.Event().wait()
            finally:
                self._store.go_on.set()
                while self._store.renewals < 2:  # noqa: ASYNC110 - a store tells nobody
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)
        self.got += len(envelopes)


async def test_relay_outlives_a_renewal_that_comes_while_a_late_batch_is_given_up() -> None:
    # given
    store = SlowToRenew()
    store.record(DomainEvent("thing.changed", "thing", 1, {}))
    publisher: Any = SlowToEnd(store)

    # when
    async with OutboxRelay(store, publisher, RelayConfig(lease=LEASE)) as relay:
        async with asyncio.timeout(30):
            while not publisher.got and relay.problem is None:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

        # then
        assert relay.problem is None
        assert publisher.got == 1


class CutOff:
    """Hangs with the first batch, and no lease is renewed until that is given up."""

    def __init__(self, store: SlowToRenew) -> None:
        self._store = store

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, envelope: Any, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, _envelopes: Any, /) -> None:
        if not self._store.go_on.is_set():
            try:
                await asyncio.Event().wait()
            finally:
                self._store.go_on.set()


async def test_event_that_a_relay_had_in_hand_while_it_was_cut_off_is_not_taken_for_a_killer() -> (
    None
):
    # given
    store = SlowToRenew()
    [row] = store.record(DomainEvent("thing.changed", "thing", 1, {}))
    await store.lease(uuid4(), "died with its lanes", timedelta(0))
    store.renewals = 0
    publisher: Any = CutOff(store)

    # when
    config = RelayConfig(lease=LEASE, max_crashes=1, poll_interval=timedelta(milliseconds=20))
    async with OutboxRelay(store, publisher, config), asyncio.timeout(30):
        while row.status == "pending":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)

    # then
    assert (row.status, row.last_error) == ("published", None)

"""Receiving as a consumer does it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from outrider.errors import BrokerUnavailable
from outrider.testing.conformance.events import envelopes_of, event
from outrider.testing.conformance.timing import before_the_next_try, deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from uuid import UUID

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import Delivery, EventSource
    from outrider.testing.conformance.harness import SourceHarness

_BATCH_SIZE: Final = 100


@asynccontextmanager
async def receiving(harness: SourceHarness) -> AsyncIterator[EventSource]:
    source = harness.source()
    try:
        await source.open()
        yield source
    finally:
        await source.close()


async def receive(source: EventSource, limit: int) -> list[Delivery]:
    """The result of one call; empty if the broker is unavailable."""
    try:
        async with deadline():
            return list(await source.receive(limit))
    except BrokerUnavailable:
        await before_the_next_try()
        return []


async def acknowledge(source: EventSource, delivery: Delivery) -> None:
    """Repeat the call while the broker is unavailable."""
    async with deadline():
        while True:
            try:
                return await source.acknowledge(delivery)
            except BrokerUnavailable:
                await before_the_next_try()


async def receive_some(source: EventSource, count: int) -> list[Delivery]:
    """This number of deliveries, by as many calls as it takes."""
    return await _collect(source, lambda found: max(0, count - len(found)))


async def receive_until(source: EventSource, *last: EventEnvelope) -> list[Delivery]:
    """Everything up to these events, and what follows until a call returns nothing."""
    found = await _collect(source, lambda found: _BATCH_SIZE * bool(_ids(last) - _ids_in(found)))
    while more := await receive(source, _BATCH_SIZE):
        found += more
    return found


async def receive_left(harness: SourceHarness, *aggregate_ids: str) -> list[Delivery]:
    """Messages that were not acknowledged: what the next source receives besides new events."""
    new = [event(aggregate_id) for aggregate_id in aggregate_ids]
    async with receiving(harness) as source:
        await harness.send(new)
        found = await receive_until(source, *new)
    return [delivery for delivery in found if not _ids_in([delivery]) & _ids(new)]


def _ids(envelopes: Iterable[EventEnvelope]) -> set[UUID]:
    return {envelope.event_id for envelope in envelopes}


def _ids_in(deliveries: Iterable[Delivery]) -> set[UUID]:
    return _ids(envelopes_of(deliveries))


async def _collect(
    source: EventSource, missing: Callable[[Sequence[Delivery]], int]
) -> list[Delivery]:
    found: list[Delivery] = []
    try:
        async with deadline():
            while limit := missing(found):
                found += await receive(source, limit)
    except TimeoutError:
        raise AssertionError(f"too little was received in time: {found}") from None
    return found

"""Publishing as a relay does it, and the outcome of each event."""
# ruff: noqa: S101

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from outrider.errors import BrokerUnavailable, PublishFailed
from outrider.lifecycle import close_publisher, open_publisher
from outrider.outcomes import ACCEPTED, Accepted, Outcome, Refused, Unknown
from outrider.testing.conformance.timing import before_the_next_try, deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventPublisher
    from outrider.testing.conformance.harness import SinkHarness


@asynccontextmanager
async def publishing(sink: SinkHarness) -> AsyncIterator[EventPublisher]:
    publisher = sink.publisher()
    try:
        await open_publisher(publisher)
        yield publisher
    finally:
        await close_publisher(publisher)


async def outcomes_of(publisher: EventPublisher, batch: Sequence[EventEnvelope]) -> list[Outcome]:
    """One outcome per event; the accepted events of each aggregate must be a prefix."""
    outcomes = await _outcomes_of(publisher, batch)
    assert len(outcomes) == len(batch), "one outcome per event"
    accepted = defaultdict(list)
    for envelope, outcome in zip(batch, outcomes, strict=True):
        accepted[envelope.aggregate_id].append(isinstance(outcome, Accepted))
    assert all(line == sorted(line, reverse=True) for line in accepted.values()), outcomes
    return outcomes


async def _outcomes_of(publisher: EventPublisher, batch: Sequence[EventEnvelope]) -> list[Outcome]:
    try:
        async with deadline():
            await publisher.publish_all(batch)
    except PublishFailed as failed:
        return list(failed.outcomes)  # type: ignore[arg-type]
    except BrokerUnavailable as error:
        return [Unknown(str(error), error)] * len(batch)
    return [ACCEPTED] * len(batch)


async def settle(publisher: EventPublisher, batch: Sequence[EventEnvelope]) -> list[Outcome]:
    """The final outcome of each event.

    Deferred and unknown events are published again, unless an earlier event of their aggregate was
    refused.
    """
    last: dict[EventEnvelope, Outcome] = {}
    left = list(batch)
    try:
        async with deadline():
            while left:
                last.update(zip(left, await outcomes_of(publisher, left), strict=True))
                left = list(_to_repeat(batch, last))
                if left:
                    await before_the_next_try()
    except TimeoutError:
        reasons = {getattr(outcome, "reason", "accepted") for outcome in last.values()}
        raise AssertionError(f"not accepted in time: {reasons}") from None
    return [last[envelope] for envelope in batch]


def _to_repeat(
    batch: Sequence[EventEnvelope], last: dict[EventEnvelope, Outcome]
) -> Iterator[EventEnvelope]:
    stopped = set()
    for envelope in batch:
        if isinstance(last[envelope], Refused):
            stopped.add(envelope.aggregate_id)
        elif envelope.aggregate_id not in stopped and not isinstance(last[envelope], Accepted):
            yield envelope


def kinds(outcomes: Sequence[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


def accepted_of(
    batch: Iterable[EventEnvelope], outcomes: Iterable[Outcome]
) -> Iterator[EventEnvelope]:
    pairs = zip(batch, outcomes, strict=True)
    return (envelope for envelope, outcome in pairs if isinstance(outcome, Accepted))

"""One loop of a relay: claims, publishes and settles one batch at a time, for some lanes."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    PublishFailed,
)
from outrider.lanes import LEAST_PER_LANE
from outrider.lifecycle import call_apart, is_cancelled
from outrider.observability.failure_reason import MAX_REASON_CHARS, failure_reason, one_line
from outrider.outcomes import (
    ACCEPTED,
    HELD_BACK,
    Accepted,
    Deferred,
    Outcome,
    Refused,
    RefusedEvent,
    Unknown,
)
from outrider.relay.backoff import OutageBackoff, RetryTimes, sleep_unless
from outrider.relay.current_batch import CurrentBatch, current_batch
from outrider.relay.deferrals import Deferrals
from outrider.relay.suspects import Suspects
from outrider.signals import (
    BatchClaimed,
    BatchPublished,
    EventFailed,
    LeaseWasLost,
    PublishRetried,
    WokenUp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.outcomes import ClaimedEvent
    from outrider.ports import EventPublisher, OutboxStore
    from outrider.relay.config import RelayConfig
    from outrider.relay.leases import HeldLanes
    from outrider.relay.outages import Connect, Outages
    from outrider.signals import OnSignal


class RelayLoop:
    """Serves the lanes whose number is its own, modulo the number of loops."""

    def __init__(
        self,
        number: int,
        store: OutboxStore,
        publisher: EventPublisher,
        config: RelayConfig,
        *,
        lanes: HeldLanes,
        outages: Outages,
        connect: Connect,
        stopping: asyncio.Event,
        signal: OnSignal,
    ) -> None:
        self.number = number
        self.published = 0
        self._store, self._publisher, self._config = store, publisher, config
        self._held, self._outages, self._stopping, self._signal = lanes, outages, stopping, signal
        self._sink, self._connect = store.sink, connect
        self._woken = asyncio.Event()
        self._named: frozenset[int] | None = None
        """The lanes that wake-ups named since the last round; None if any lane may have work."""
        self._poll_at = 0.0
        self._retry_times = RetryTimes()
        self._deferrals = Deferrals(store.sink, signal)
        self._congestion = OutageBackoff(first=0.1, cap=1.0)
        self._deadline: asyncio.Timeout | None = None
        self._average_bytes = 1.0
        self._tokens: dict[int, int] = {}
        self._suspects = Suspects(store, lanes, config)

    async def run(self) -> None:
        named = None
        while not self._stopping.is_set():
            try:
                busy = await self._round(named)
            except DatabaseUnavailable as error:
                named = None
                await self._outages.store_is_down(error)
                continue
            named = None
            if busy:
                self._outages.store_is_up()
            else:  # perhaps no query was made: the next renewal tells whether the database answers
                named = await self._idle()

    def wake(self, lanes: frozenset[int] | None = None) -> None:
        """There may be work in these lanes, or in any."""
        known = self._named
        self._named = None if lanes is None or known is None else known | lanes
        self._woken.set()

    def serves(self, lane: int) -> bool:
        return lane % self._config.loops == self.number

    def extend(self, valid_until: float) -> None:
        """The lease was renewed; a batch in flight may go on until then."""
        # A deadline that has expired cannot be moved: that batch is being cancelled.
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(valid_until)

    async def _idle(self) -> frozenset[int] | None:
        """Waits for work. Returns the lanes that wake-ups named, or None if any may have work."""
        clock = asyncio.get_running_loop().time
        until = min(self._poll_at, self._retry_times.earliest)
        # The clock is looked at first: a flood of wake-ups must not put off the poll for ever.
        if clock() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._woken.wait()
                return self._named
        self._retry_times.drop_until(clock())
        self._signal(WokenUp(sink=self._sink, source="poll"))
        return None

    async def _round(self, named: frozenset[int] | None) -> bool:
        """One batch; returns whether there may be more work at once."""
        self._woken.clear()
        self._named = frozenset()
        if named is None:
            jitter = random.uniform(0.8, 1.0)  # noqa: S311 - spread, not secret
            interval = self._config.poll_interval.total_seconds() * jitter
            self._poll_at = asyncio.get_running_loop().time() + interval
        await self._release_surplus()
        lanes = self._lanes()
        self._tokens = {lane: self._held.tokens[lane] for lane in lanes}
        if not lanes or not self._held.are_valid:
            self._named = None
            return False
        await self._suspects.clear(self._tokens)
        recovering = lanes.intersection(self._held.recovering)
        limit = self._limit()
        batch = await self._claim(recovering or (lanes if named is None else lanes & named), limit)
        if damaged := [RefusedEvent(e, e.problem, None) for e in batch if e.problem]:
            await self._settle([], damaged, [])
            return True
        if recovering:
            batch = await self._isolate_suspects(batch, recovering)
        if not batch:
            return bool(recovering)
        all_accepted = await self._process(batch)
        that_was_all = (
            all_accepted and named and not recovering and len(batch) < min(limit, LEAST_PER_LANE)
        )
        return not that_was_all

    def _lanes(self) -> set[int]:
        return {lane for lane in self._held.tokens if self.serves(lane)}

    async def _release_surplus(self) -> None:
        """Release lanes that other relays should have; nothing of theirs is in flight now."""
        if surplus := self._lanes().intersection(self._held.surplus):
            await self._held.release(surplus)

    def _limit(self) -> int:
        """How many events make a batch, judging their size by the last batch."""
        fitting = int(self._config.batch_bytes / self._average_bytes)
        return max(1, min(self._config.batch_size, fitting))

    async def _claim(self, lanes: set[int], limit: int) -> list[ClaimedEvent]:
        clock = asyncio.get_running_loop().time
        started = clock()
        batch = await self._store.claim(lanes, limit)
        if batch:
            took = timedelta(seconds=clock() - started)
            size = sum(len(event.envelope.data) for event in batch)
            self._average_bytes = max(1.0, size / len(batch))
            self._signal(BatchClaimed(sink=self._sink, events=len(batch), took=took))
        return batch

    async def _isolate_suspects(
        self, batch: list[ClaimedEvent], lanes: set[int]
    ) -> list[ClaimedEvent]:
        """The last owner of these lanes died, perhaps of one of these events."""
        few = self._suspects.choose(batch, lanes)
        if few and self._suspects.is_hopeless(few[0]):
            reason = f"{few[0].crash_count} relays died with this event in hand"
            await self._settle([], [RefusedEvent(few[0], reason, None)], [])
            return []
        if few:
            await self._suspects.count(self._tokens, few)
        return few

    async def _process(self, batch: list[ClaimedEvent]) -> bool:
        """Whether all were accepted."""
        clock = asyncio.get_running_loop().time
        started = clock()
        outcomes = await self._publish_opened(batch)
        if outcomes is None:
            self._signal(LeaseWasLost(sink=self._sink, lanes=0, events=len(batch)))
            return False
        took = timedelta(seconds=clock() - started)
        pairs = list(zip(batch, outcomes, strict=True))
        accepted = [event for event, outcome in pairs if isinstance(outcome, Accepted)]
        refused = [self._refused(e, o.reason) for e, o in pairs if isinstance(o, Refused)]
        if self._deferrals.are_active:
            self._deferrals.accepted(accepted)
        deferred = self._deferrals.defer(
            (event, o.reason) for event, o in pairs if isinstance(o, Deferred)
        )
        unknown = [(event, o) for event, o in pairs if isinstance(o, Unknown)]
        if accepted or refused or deferred:
            self._outages.sink_is_up()
        await self._settle(accepted, [*refused, *deferred], [event for event, _ in unknown])
        not_accepted = [event for event, o in pairs if not isinstance(o, Accepted)]
        await self._suspects.settled(self._tokens, not_accepted)
        self.published += len(accepted)
        self._signal(
            BatchPublished(
                sink=self._sink,
                accepted=accepted,
                refused=len(refused),
                deferred=len(deferred),
                unknown=len(unknown),
                took=took,
            )
        )
        if accepted:
            self._congestion.reset()
        elif not refused and not deferred:
            await self._outages.sink_is_down(unknown[0][1].reason)
        elif deferred and len(batch) >= self._limit():
            # Many events wait for the same sink: trying each of them at once would help nobody.
            await sleep_unless(self._stopping, self._congestion.next_delay())
        return len(accepted) == len(batch)

    async def _publish_opened(self, batch: list[ClaimedEvent]) -> Sequence[Outcome] | None:
        """Publish, but open the publisher first if that has never succeeded."""
        if not self._outages.was_connected and (problem := await self._connect()):
            return [Unknown(problem)] * len(batch)
        return await self._publish(batch)

    async def _publish(self, batch: list[ClaimedEvent]) -> Sequence[Outcome] | None:
        """One outcome per event, or None if the lease ran out meanwhile."""
        envelopes = [event.envelope for event in batch]
        current_batch.set(CurrentBatch(batch, self._config.error_detail))
        limit = self._config.publish_timeout.total_seconds()
        try:
            async with asyncio.timeout_at(self._held.valid_until) as self._deadline:
                try:
                    async with asyncio.timeout(limit):
                        publishing = self._publisher.publish_all(envelopes)
                        await call_apart("the publisher", publishing, self._config.patience_s)
                        return [ACCEPTED] * len(batch)
                except PublishFailed as failed:
                    return cast("Sequence[Outcome]", failed.outcomes)
                except (BrokerUnavailable, DatabaseUnavailable) as error:
                    return [Unknown(str(error))] * len(batch)
                except (ConfigurationError, TimeoutError):
                    raise
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and is_cancelled():
                        raise
                    if isinstance(error, OSError) and error.filename is None:
                        # Of a connection, or a full disk: the event is not at fault.
                        return [Unknown(self._reason(error))] * len(batch)
                    return await self._publish_apart(batch, error)
        except TimeoutError:
            if self._deadline is not None and self._deadline.expired():
                return None
            return [Unknown(f"no answer within {limit:g} s")] * len(batch)
        finally:
            self._deadline = None

    async def _publish_apart(
        self, batch: list[ClaimedEvent], error: BaseException
    ) -> Sequence[Outcome]:
        """The publisher broke its contract and raised; publish one by one to find the cause."""
        if len(batch) == 1:
            return [Refused(self._reason(error))]
        outcomes: list[Outcome] = []
        stopped: set[int] = set()
        for event in batch:
            outcome: Outcome = HELD_BACK
            if event.aggregate_key not in stopped:
                (outcome,) = await self._publish([event]) or [Unknown("the lease ran out")]
            if outcome is not ACCEPTED:
                stopped.add(event.aggregate_key)
            outcomes.append(outcome)
        return outcomes

    def _reason(self, error: BaseException) -> str:
        return f"the publisher raised {failure_reason(error, self._config.error_detail)}"

    def _refused(self, event: ClaimedEvent, reason: str) -> RefusedEvent:
        wait = self._config.wait_after(event.retry_count + 1, event.max_retries)
        return RefusedEvent(event, one_line(reason)[:MAX_REASON_CHARS], wait)

    async def _settle(
        self,
        accepted: list[ClaimedEvent],
        refused: list[RefusedEvent],
        unknown: list[ClaimedEvent],
    ) -> None:
        expected, repeated = len(accepted) + len(refused), False
        while True:
            try:
                changed = await self._store.settle(
                    self._held.relay, self._tokens, accepted, refused, unknown
                )
                break
            except DatabaseUnavailable as error:
                # The sink has these events already, so settling is repeated while the lease lasts.
                if not self._held.are_valid:
                    raise
                await self._outages.store_is_down(error)
                repeated = True
        # A settle whose reply was lost may have changed the rows: then none is left to change.
        if changed < expected and not repeated:
            lost = expected - changed
            self._signal(LeaseWasLost(sink=self._sink, lanes=0, events=lost))
        now = asyncio.get_running_loop().time()
        for item in refused:
            if item.counted:
                self._report(item)
            if item.wait is not None:
                self._retry_times.add(now + item.wait.total_seconds())

    def _report(self, item: RefusedEvent) -> None:
        envelope, attempt = item.event.envelope, item.event.retry_count + 1
        if item.wait is None:
            self._signal(
                EventFailed(
                    sink=self._sink,
                    event_id=envelope.event_id,
                    event_type=envelope.event_type,
                    correlation_id=envelope.metadata.correlation_id,
                    attempt=attempt,
                    reason=item.reason,
                )
            )
        else:
            self._signal(
                PublishRetried(
                    sink=self._sink,
                    event_id=envelope.event_id,
                    event_type=envelope.event_type,
                    correlation_id=envelope.metadata.correlation_id,
                    attempt=attempt,
                    wait=item.wait,
                    reason=item.reason,
                )
            )

"""One loop of a relay: some of its lanes, one batch at a time."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, cast

from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
    PublishFailed,
)
from outrider.ports import (
    ACCEPTED,
    HELD_BACK,
    LEAST_PER_LANE,
    Accepted,
    Outcome,
    Refused,
    RefusedEvent,
    Unknown,
)
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

    from outrider.ports import ClaimedEvent
    from outrider.relay_state import RelayState


class Worker:
    """Claims, publishes and settles for the lanes whose number is its own modulo all loops."""

    def __init__(self, state: RelayState, number: int) -> None:
        self._state, self.number = state, number
        self._woken = asyncio.Event()
        self._named: frozenset[int] | None = None
        self._look_by = 0.0
        self.published = 0
        self._deadline: asyncio.Timeout | None = None
        self._average_bytes = 1.0
        self._tried = 0
        self._retry_at = inf
        self._tokens: dict[int, int] = {}
        self._suspects: list[ClaimedEvent] = []

    async def run(self) -> None:
        named = None
        while not self._state.stopping.is_set():
            try:
                busy = await self._round(named)
            except DatabaseUnavailable as error:
                named = None
                await self._state.store_is_down(error)
                continue
            named = None
            if busy:
                self._state.store_is_up()
            else:  # perhaps without a word to the database: the next renewal tells how it is
                named = await self._idle()

    def wake(self, lanes: frozenset[int] | None = None) -> None:
        """There may be something to do, in these lanes or anywhere."""
        known = self._named
        self._named = None if lanes is None or known is None else known | lanes
        self._woken.set()

    def serves(self, lane: int) -> bool:
        return lane % self._state.config.loops == self.number

    def extend(self, valid_until: float) -> None:
        """The lease was renewed while a batch is with the sink."""
        # One that has expired cannot be taken back: that batch is being given up.
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(valid_until)

    async def _idle(self) -> frozenset[int] | None:
        """Until there may be something to do; in which lanes, if that was said of all there is."""
        until = min(self._look_by, self._retry_at)
        if self._retry_at <= until:
            self._retry_at = inf
        # The time counts first: wake-ups that go on and on must not hide one that was lost.
        if asyncio.get_running_loop().time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._woken.wait()
                return self._named
        self._state.signal(WokenUp(sink=self._state.sink, source="poll"))
        return None

    async def _round(self, named: frozenset[int] | None) -> bool:
        """Whether there was something to do."""
        self._woken.clear()
        self._named = frozenset()
        if named is None:
            interval = self._state.config.poll_interval.total_seconds() * random.uniform(0.8, 1.0)  # noqa: S311
            self._look_by = asyncio.get_running_loop().time() + interval
        await self._leave()
        lanes = self._lanes()
        self._tokens = {lane: self._state.lanes[lane] for lane in lanes}
        if not lanes or not self._state.lease_is_valid:
            self._named = None
            return False
        await self._clear_suspects()
        careful = lanes & self._state.careful
        limit = self._limit()
        batch = await self._claim(careful or (lanes if named is None else lanes & named), limit)
        if damaged := [RefusedEvent(e, e.problem, None) for e in batch if e.problem]:
            await self._settle([], damaged, [])
            return True
        if careful:
            batch = await self._try_carefully(batch, careful)
        if not batch:
            return bool(careful)
        all_accepted = await self._process(batch)
        that_was_all = (
            all_accepted and named and not careful and len(batch) < min(limit, LEAST_PER_LANE)
        )
        return not that_was_all

    def _lanes(self) -> set[int]:
        return {lane for lane in self._state.lanes if self.serves(lane)}

    async def _leave(self) -> None:
        """Give up lanes that other relays should have; nothing of theirs is in hand now."""
        if leaving := self._lanes() & self._state.leaving:
            await self._state.release(leaving)

    def _limit(self) -> int:
        """How many events are a batch, as far as memory goes by those of the last one."""
        fitting = int(self._state.config.batch_bytes / self._average_bytes)
        return max(1, min(self._state.config.batch_size, fitting))

    async def _claim(self, lanes: set[int], limit: int) -> list[ClaimedEvent]:
        clock = asyncio.get_running_loop().time
        started = clock()
        batch = await self._state.store.claim(lanes, limit)
        if batch:
            took = timedelta(seconds=clock() - started)
            size = sum(len(event.envelope.data) for event in batch)
            self._average_bytes = max(1.0, size / len(batch))
            sink = self._state.sink
            self._state.signal(BatchClaimed(sink=sink, events=len(batch), took=took))
        return batch

    async def _try_carefully(
        self, batch: list[ClaimedEvent], lanes: set[int]
    ) -> list[ClaimedEvent]:
        """These lanes had an owner that died, perhaps of one of these events.

        Until as many are through as it can have had in hand, few are tried at a time, each with
        a mark that is written before; one that has such a mark already is tried alone.
        """
        config, state = self._state.config, self._state
        few = batch[: max(1, config.batch_size // 10)]
        if any(event.crash_count for event in few):
            few = few[:1]
        self._tried += len(few)
        if not few or self._tried >= config.batch_size:
            state.careful -= lanes
            self._tried = 0
        if few and few[0].crash_count >= config.max_crashes:
            reason = f"{few[0].crash_count} relays died with this event in hand"
            await self._settle([], [RefusedEvent(few[0], reason, None)], [])
            return []
        if few:
            await state.store.suspect(state.id, self._tokens, few)
            self._suspects = few
        return few

    async def _clear_suspects(self) -> None:
        """We live, so whatever kept these from being settled is no crash."""
        if self._suspects:
            await self._state.store.suspect(self._state.id, self._tokens, self._suspects, -1)
            self._suspects = []

    async def _process(self, batch: list[ClaimedEvent]) -> bool:
        """Whether all were accepted."""
        clock = asyncio.get_running_loop().time
        started = clock()
        outcomes = await self._publish(batch)
        if outcomes is None:
            self._state.signal(LeaseWasLost(sink=self._state.sink, lanes=0, events=len(batch)))
            return False
        took = timedelta(seconds=clock() - started)
        pairs = list(zip(batch, outcomes, strict=True))
        accepted = [event for event, outcome in pairs if isinstance(outcome, Accepted)]
        refused = [self._refused(e, o.reason) for e, o in pairs if isinstance(o, Refused)]
        unknown = [(event, o) for event, o in pairs if isinstance(o, Unknown)]
        if accepted or refused:
            self._state.sink_is_up()
        await self._settle(accepted, refused, [event for event, _ in unknown])
        if self._suspects:
            self._suspects = [event for event, o in pairs if not isinstance(o, Accepted)]
            await self._clear_suspects()
        self.published += len(accepted)
        self._state.signal(
            BatchPublished(
                sink=self._state.sink,
                accepted=accepted,
                refused=len(refused),
                unknown=len(unknown),
                took=took,
            )
        )
        if not accepted and not refused:
            await self._state.sink_is_down(unknown[0][1].reason)
        return len(accepted) == len(batch)

    async def _publish(self, batch: list[ClaimedEvent]) -> Sequence[Outcome] | None:
        """One outcome per event, or None if the lease ran out meanwhile."""
        envelopes = [event.envelope for event in batch]
        limit = self._state.config.publish_timeout.total_seconds()
        try:
            async with asyncio.timeout_at(self._state.valid_until) as self._deadline:
                try:
                    async with asyncio.timeout(limit):
                        await self._state.publisher.publish_all(envelopes)
                        return [ACCEPTED] * len(batch)
                except PublishFailed as failed:
                    return cast("Sequence[Outcome]", failed.outcomes)
                except (BrokerUnavailable, DatabaseUnavailable) as error:
                    return [Unknown(str(error))] * len(batch)
                except (ConfigurationError, TimeoutError):
                    raise
                except Exception as error:  # noqa: BLE001 - a publisher of somebody's own
                    return await self._publish_apart(batch, type(error).__name__)
        except TimeoutError:
            if self._deadline is not None and self._deadline.expired():
                return None
            return [Unknown(f"no answer within {limit:g} s")] * len(batch)
        finally:
            self._deadline = None

    async def _publish_apart(self, batch: list[ClaimedEvent], error: str) -> Sequence[Outcome]:
        """The publisher broke its promise and raised; who of these events is to blame?"""
        if len(batch) == 1:
            return [Refused(f"the publisher raised {error}")]
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

    def _refused(self, event: ClaimedEvent, reason: str) -> RefusedEvent:
        attempt = event.retry_count + 1
        wait = self._state.config.retry.delay_after(attempt)
        limit = event.max_retries or self._state.config.max_retries
        if limit is not None and attempt >= limit:
            wait = None
        return RefusedEvent(event, reason, wait)

    async def _settle(
        self,
        accepted: list[ClaimedEvent],
        refused: list[RefusedEvent],
        unknown: list[ClaimedEvent],
    ) -> None:
        state, expected, repeated = self._state, len(accepted) + len(refused), False
        while True:
            try:
                changed = await state.store.settle(
                    state.id, self._tokens, accepted, refused, unknown
                )
                break
            except DatabaseUnavailable as error:
                # The sink has these events, so settling is worth repeating while it is allowed.
                if not state.lease_is_valid:
                    raise
                await state.store_is_down(error)
                repeated = True
        # One whose reply was lost may have settled them: then there is nothing left to change.
        if changed < expected and not repeated:
            lost = expected - changed
            state.signal(LeaseWasLost(sink=state.sink, lanes=0, events=lost))
        now = asyncio.get_running_loop().time()
        for item in refused:
            self._report(item)
            if item.wait is not None:
                self._retry_at = min(self._retry_at, now + item.wait.total_seconds())

    def _report(self, item: RefusedEvent) -> None:
        envelope = item.event.envelope
        facts: dict[str, Any] = {
            "sink": self._state.sink,
            "event_id": envelope.event_id,
            "event_type": envelope.event_type,
            "correlation_id": envelope.metadata.correlation_id,
            "attempt": item.event.retry_count + 1,
            "reason": item.reason,
        }
        if item.wait is None:
            self._state.signal(EventFailed(**facts))
        else:
            self._state.signal(PublishRetried(**facts, wait=item.wait))

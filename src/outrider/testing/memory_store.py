"""An outbox store in memory, so that tests can run a relay without a database."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from typing import TYPE_CHECKING, Literal

from outrider.errors import InvalidEvent
from outrider.events.context import current_metadata
from outrider.events.envelope import EventEnvelope
from outrider.lanes import LANES, LANES_FREE, LaneLease, fair_share, surplus
from outrider.ports import DEFAULT_SINK
from outrider.recording.routing import Routes
from outrider.recording.rows import row_of
from outrider.store.claimed_events import event_of
from outrider.store.schema.tables import MAX_ATTEMPT_CHARS, MAX_ATTEMPTS_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from outrider.events.event import Event
    from outrider.events.strict_json import JsonObject
    from outrider.outcomes import ClaimedEvent, RefusedEvent
    from outrider.recording.rows import Row


@dataclass(kw_only=True)
class MemoryRow:
    """The row of an event for one sink; `event` is what the producer wrote."""

    position: int
    event: Row = field(repr=False)
    created_at: datetime
    status: Literal["pending", "published", "failed"] = "pending"
    retry_count: int = 0
    crash_count: int = 0
    max_retries: int | None = None
    next_retry_at: datetime | None = None
    last_error: str | None = None
    published_at: datetime | None = None
    delivery_number: int | None = None
    attempts: list[JsonObject] | None = None

    def add_attempt(self, at: datetime, reason: str) -> None:
        attempt = {
            "attempt": self.retry_count + 1,
            "at": at.isoformat(),
            "reason": reason[:MAX_ATTEMPT_CHARS],
        }
        self.attempts = [*(self.attempts or ()), attempt][-MAX_ATTEMPTS_KEPT:]

    def claimed(self) -> ClaimedEvent:
        row, counts = self.event, (self.retry_count, self.crash_count, self.max_retries)
        what = row.event_type, row.event_version, row.aggregate_type, row.aggregate_id
        times, texts = (row.occurred_at, self.created_at), (row.payload, row.metadata)
        return event_of(
            (self.position, row.id, row.lane, *what, *times, *counts, row.aggregate_key, *texts)
        )


@dataclass
class _Lane:
    owner: UUID | None
    token: int
    expires_at: datetime


class _Sink:
    """What the relays of one sink share."""

    def __init__(self) -> None:
        self.lanes = [_Lane(None, 0, datetime.min.replace(tzinfo=UTC)) for _ in range(LANES)]
        self.relays: dict[UUID, datetime] = {}
        self.deliveries = count(1)
        self.wakes: list[Callable[[str], None]] = []

    def lease(self, relay: UUID, now: datetime, until: datetime) -> LaneLease:
        self.relays[relay] = until
        for lane in self.lanes:
            if lane.owner == relay:
                lane.expires_at = until
        live = [each for each, expires_at in self.relays.items() if expires_at >= now]
        share, orphaned = fair_share(relay, live), set()
        for number in list(islice(self._free(now), max(0, share - len(self.tokens(relay))))):
            lane = self.lanes[number]
            if lane.owner is not None:
                orphaned.add(number)
            self.lanes[number] = _Lane(relay, lane.token + 1, until)
        tokens = self.tokens(relay)
        return LaneLease(tokens, frozenset(orphaned), frozenset(surplus(tokens, share)))

    def tokens(self, relay: UUID) -> dict[int, int]:
        return {n: lane.token for n, lane in enumerate(self.lanes) if lane.owner == relay}

    def _free(self, now: datetime) -> Iterator[int]:
        for number, lane in enumerate(self.lanes):
            if lane.owner is None or lane.expires_at < now:
                yield number

    def wake(self, word: str) -> None:
        for wake in tuple(self.wakes):
            wake(word)


class MemoryOutboxStore:
    """Keeps the promises of the real stores, for relays of one event loop.

    `record` adds events, as if their transaction had just been committed. `rows` shows their
    status. `of_sink` returns the store of another relay or sink. To let leases and retry delays
    run out, pass a `clock` and move it.
    """

    def __init__(
        self,
        *,
        sink: str = DEFAULT_SINK,
        park: bool = False,
        routes: Routes | Mapping[str, str | Sequence[str]] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.sink, self._park, self._clock = sink, park, clock
        self._routes = routes if isinstance(routes, Routes) else Routes(routes)
        self._rows: dict[int, MemoryRow] = {}
        self._positions = count(1)
        self._sinks: defaultdict[str, _Sink] = defaultdict(_Sink)
        self._wake: Callable[[str], None] | None = None

    def of_sink(self, sink: str, *, park: bool = False) -> MemoryOutboxStore:
        """Another store over the same rows."""
        other = type(self)(sink=sink, park=park, routes=self._routes, clock=self._clock)
        other._rows, other._positions, other._sinks = self._rows, self._positions, self._sinks
        return other

    def record(
        self, *events: Event | EventEnvelope, sinks: Sequence[str] | None = None
    ) -> list[MemoryRow]:
        """Add a row for each event and sink, and wake relays up.

        `sinks` overrides the routes.
        """
        known = {(row.event.id, row.event.sink) for row in self._rows.values()}
        made: list[MemoryRow] = []
        for event in events:
            for row in self._rows_of(event, sinks):
                if (row.id, row.sink) in known:
                    raise InvalidEvent(f"{row.event_type}: event {row.id} was recorded before")
                known.add((row.id, row.sink))
                position, now = next(self._positions), self._clock()
                made.append(MemoryRow(position=position, event=row, created_at=now))
        self._rows.update((row.position, row) for row in made)
        for sink in {row.event.sink for row in made}:
            self._sinks[sink].wake("notify")
        return made

    def _rows_of(self, event: Event | EventEnvelope, sinks: Sequence[str] | None) -> Iterator[Row]:
        if not isinstance(event, EventEnvelope):
            event = event.to_envelope(current_metadata())
        for sink in self._routes.of(event.event_type) if sinks is None else sinks:
            yield row_of(event, sink)

    @property
    def rows(self) -> list[MemoryRow]:
        """All rows of this sink, in the order of their recording."""
        return [row for row in self._rows.values() if row.event.sink == self.sink]

    @property
    def _own(self) -> _Sink:
        return self._sinks[self.sink]

    async def open(self, wake: Callable[[str], None], /) -> str:
        self._wake = wake
        self._own.wakes.append(wake)
        return "memory"

    async def close(self) -> None:
        if self._wake in self._own.wakes:
            self._own.wakes.remove(self._wake)

    async def lease(self, relay: UUID, _name: str, duration: timedelta, /) -> LaneLease:
        now = self._clock()
        return self._own.lease(relay, now, now + duration)

    async def release(self, relay: UUID, lanes: Collection[int] | None, /) -> None:
        for number in self._own.tokens(relay):
            if lanes is None or number in lanes:
                self._own.lanes[number].owner = None
        if lanes is None:
            self._own.relays.pop(relay, None)
        self._own.wake(LANES_FREE)

    async def claim(self, lanes: Collection[int], limit: int, /) -> list[ClaimedEvent]:
        now, batch, waiting = self._clock(), [], set[int]()
        if self._park:
            waiting = {row.event.aggregate_key for row in self.rows if row.status == "failed"}
        for row in self.rows:
            if row.status == "pending" and row.event.lane in lanes:
                if row.next_retry_at is not None and row.next_retry_at > now:
                    waiting.add(row.event.aggregate_key)
                if row.event.aggregate_key not in waiting:
                    batch.append(row.claimed())
        return batch[:limit]

    async def settle(
        self,
        relay: UUID,
        tokens: Mapping[int, int],
        accepted: Sequence[ClaimedEvent],
        refused: Sequence[RefusedEvent],
        _unknown: Sequence[ClaimedEvent],
        /,
    ) -> int:
        now, mine = self._clock(), self._mine(relay, tokens)
        mine = {position: row for position, row in mine.items() if row.status == "pending"}
        done = [row for event in accepted if (row := mine.get(event.position))]
        for row in done:
            row.status, row.published_at, row.next_retry_at = "published", now, None
            row.delivery_number = next(self._own.deliveries)
        back = [(row, item) for item in refused if (row := mine.get(item.event.position))]
        for row, item in back:
            if item.counted:
                row.add_attempt(now, item.reason)
            row.retry_count, row.last_error = row.retry_count + item.counted, item.reason
            row.next_retry_at = None if item.wait is None else now + item.wait
            row.status = "failed" if item.wait is None else "pending"
        return len(done) + len(back)

    async def adjust_crash_count(
        self, relay: UUID, tokens: Mapping[int, int], events: Sequence[ClaimedEvent], by: int = 1, /
    ) -> None:
        mine = self._mine(relay, tokens)
        for event in events:
            if row := mine.get(event.position):
                row.crash_count += by

    def _mine(self, relay: UUID, tokens: Mapping[int, int]) -> dict[int, MemoryRow]:
        """The rows that a relay with these tokens may change."""
        lanes = {lane for lane, _ in self._own.tokens(relay).items() & tokens.items()}
        return {row.position: row for row in self.rows if row.event.lane in lanes}

    async def count_pending(self, most: int, /) -> int:
        return min(most, sum(row.status == "pending" for row in self.rows))

    async def delete_published(self, older_than: timedelta, limit: int, /) -> int:
        latest = self._clock() - older_than
        old = [row for row in self.rows if row.published_at and row.published_at <= latest]
        oldest = sorted(old, key=lambda row: row.delivery_number or 0)[:limit]
        for row in oldest:
            del self._rows[row.position]
        return len(oldest)

"""The relay, with a sink that does what the test says: order, retries, outages, taking over."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outrider import (
    BrokerUnavailable,
    ConfigurationError,
    DomainEvent,
    EventEnvelope,
    ExponentialRetry,
    Outbox,
    OutboxRelay,
    RelayConfig,
    SqlOutboxStore,
)
from outrider import signals as s
from outrider.observability.logging import log_signals
from outrider.outcomes import ACCEPTED, Outcome, Refused, Unknown
from tests.support.doubles import RecordingSink, SignalRecorder

outbox = Outbox()
SOON = ExponentialRetry(first=timedelta(milliseconds=5))
FAST = RelayConfig(
    poll_interval=timedelta(milliseconds=50),
    retry=SOON,
    max_retries=3,
    lease=timedelta(seconds=1),
    name="one",
)


@pytest.fixture
def watch() -> SignalRecorder:
    return SignalRecorder(also=log_signals)


async def record(engine: AsyncEngine, *aggregates: int, start: int = 0) -> None:
    async with AsyncSession(engine) as session, session.begin():
        for number, aggregate in enumerate(aggregates, start):
            outbox.record(session, DomainEvent("thing.happened", "thing", aggregate, {"n": number}))


async def states(engine: AsyncEngine) -> Counter[str]:
    async with engine.connect() as connection:
        return Counter((await connection.execute(text("SELECT status FROM outbox"))).scalars())


async def column(engine: AsyncEngine, name: str) -> list[Any]:
    async with engine.connect() as connection:
        query = text(f"SELECT {name} FROM outbox ORDER BY position")  # noqa: S608
        return list((await connection.execute(query)).scalars())


def published(watch: SignalRecorder) -> int:
    return sum(len(signal.accepted) for signal in watch.of(s.BatchPublished))


async def test_everything_arrives_in_order_and_is_settled(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    sink = RecordingSink()
    await record(database, *[n % 7 for n in range(500)])

    async with OutboxRelay(SqlOutboxStore(database), sink, FAST, on_signal=watch):
        await watch.until(lambda: published(watch) == 500)
        await record(database, 1, 2, 3)
        await watch.until(lambda: published(watch) == 503)

    assert len({e.event_id for e in sink.got}) == len(sink.got) == 503
    assert all(sink.of(a)[:-1] == sorted(sink.of(a)[:-1]) for a in (1, 2, 3))
    assert await states(database) == {"published": 503}
    assert sink.closed == 1


async def test_commit_wakes_the_relay_long_before_its_poll(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    lazy = RelayConfig(poll_interval=timedelta(hours=1))

    async with OutboxRelay(SqlOutboxStore(database), RecordingSink(), lazy, on_signal=watch):
        await record(database, 1)
        await watch.until(lambda: published(watch) == 1)

    assert watch.of(s.WokenUp)[0].source == "notify"


@pytest.mark.fault("E1")
async def test_refused_event_waits_and_fails_while_others_arrive(
    database: AsyncEngine, watch: SignalRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    sink = RecordingSink(lambda e: Refused("no") if e.payload["n"] == 0 else ACCEPTED)
    await record(database, 1, 2, 1, 3)

    async with OutboxRelay(SqlOutboxStore(database), sink, FAST, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))
        await watch.until(lambda: published(watch) == 3)

    assert [e.aggregate_id for e in sink.got] == ["2", "3", "1"]
    assert [r.attempt for r in watch.of(s.PublishRetried)] == [1, 2]
    assert await column(database, "status") == ["failed", "published", "published", "published"]
    assert (await column(database, "retry_count"))[0] == 3
    assert (await column(database, "last_error"))[0] == "no"
    critical = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    (told,) = (r.getMessage() for r in critical)
    assert told.startswith("event failed, a person must look sink=default event_id=")
    assert told.endswith(" event_type=thing.happened attempt=3 reason=no")


async def test_limit_recorded_with_an_event_wins_over_that_of_the_relay(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    # given a relay that allows three attempts, and an outbox that allows two
    strict = Outbox(max_retries=2)
    async with AsyncSession(database) as session, session.begin():
        outbox.record(session, DomainEvent("thing.happened", "thing", 1, {}))
        strict.record(session, DomainEvent("thing.happened", "thing", 2, {}))
        strict.record(session, DomainEvent("thing.happened", "thing", 3, {}), max_retries=5)
    sink = RecordingSink(lambda _: Refused("no"))

    # when
    async with OutboxRelay(SqlOutboxStore(database), sink, FAST, on_signal=watch):
        await watch.until(lambda: len(watch.of(s.EventFailed)) == 3)

    # then
    assert await column(database, "max_retries") == [None, 2, 5]
    assert await column(database, "retry_count") == [3, 2, 5]


async def test_many_events_of_one_transaction_keep_their_limit(database: AsyncEngine) -> None:
    async with AsyncSession(database) as session, session.begin():
        many = [DomainEvent("thing.happened", "thing", n, {}) for n in range(20)]
        outbox.record(session, *many, max_retries=7)
        outbox.record(session, DomainEvent("thing.happened", "thing", 0, {}))

    assert await column(database, "max_retries") == [*[7] * 20, None]


async def test_limit_below_one_is_refused_when_it_is_given(database: AsyncEngine) -> None:
    with pytest.raises(ConfigurationError, match="max_retries must be at least 1, not 0"):
        Outbox(max_retries=0)
    async with AsyncSession(database) as session, session.begin():
        with pytest.raises(ConfigurationError, match="at least 1"):
            outbox.record(session, DomainEvent("thing.happened", "thing", 1, {}), max_retries=-1)


async def test_failed_event_parks_its_aggregate_if_so_set(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    sink = RecordingSink(lambda e: Refused("no") if e.payload["n"] == 0 else ACCEPTED)
    await record(database, 1, 1, 2)

    async with OutboxRelay(SqlOutboxStore(database, park=True), sink, FAST, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))
        await record(database, 3, start=1)
        await watch.until(lambda: published(watch) == 2)

    assert await column(database, "status") == ["failed", "pending", "published", "published"]


async def test_outage_costs_no_attempts_and_ends_by_itself(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    up = False
    sink = RecordingSink(lambda _: ACCEPTED if up else Unknown("no connection"))
    await record(database, *range(50))

    async with OutboxRelay(SqlOutboxStore(database), sink, FAST, on_signal=watch):
        await watch.until(lambda: len(watch.of(s.BatchPublished)) >= 2)
        assert await states(database) == {"pending": 50}
        await watch.until(lambda: len(watch.of(s.BatchPublished)) >= 4)
        assert set(await column(database, "retry_count")) == {0}
        assert len(watch.of(s.SinkUnavailable)) == 1
        up = True
        await watch.until(lambda: published(watch) == 50)

    assert len(watch.of(s.SinkAvailable)) == 1
    assert set(await column(database, "retry_count")) == {0}


async def test_sink_that_raises_unavailable_is_paused_for(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    sink, failures = RecordingSink(), iter([True, True])

    async def fail_twice() -> None:
        if next(failures, False):
            raise BrokerUnavailable("down")

    sink.before = fail_twice
    await record(database, 1)

    async with OutboxRelay(SqlOutboxStore(database), sink, FAST, on_signal=watch):
        await watch.until(lambda: published(watch) == 1)

    assert await column(database, "retry_count") == [0]
    assert watch.of(s.SinkUnavailable)[0].reason == "down"


async def test_publisher_that_raises_costs_only_the_event_to_blame(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    def answer(envelope: EventEnvelope) -> Outcome:
        if envelope.payload["n"] == 3:
            raise KeyError("a bug in somebody's publisher")
        return ACCEPTED

    await record(database, 1, 2, 3, 4, 4, 5)

    async with OutboxRelay(SqlOutboxStore(database), RecordingSink(answer), FAST, on_signal=watch):
        await watch.until(lambda: bool(watch.of(s.EventFailed)))
        await watch.until(lambda: published(watch) == 5)

    assert watch.of(s.EventFailed)[0].reason.startswith("the publisher raised KeyError at ")
    assert await states(database) == {"published": 5, "failed": 1}


@pytest.mark.parametrize("damaged", ['{"user_id": 5}', '{"x": ' + "[" * 2_000 + "]" * 2_000 + "}"])
async def test_damaged_row_is_set_aside_and_the_rest_flows(
    database: AsyncEngine, watch: SignalRecorder, damaged: str
) -> None:
    await record(database, 1, 1, 2)
    async with database.begin() as connection:
        json = "CAST(:damaged AS jsonb)" if database.dialect.name == "postgresql" else ":damaged"
        damage = text(f"UPDATE outbox SET metadata = {json} WHERE position = 1")  # noqa: S608
        await connection.execute(damage, {"damaged": damaged})

    async with OutboxRelay(SqlOutboxStore(database), RecordingSink(), FAST, on_signal=watch):
        await watch.until(lambda: published(watch) == 2)

    assert await column(database, "status") == ["failed", "published", "published"]
    assert (await column(database, "last_error"))[0] == "its metadata cannot be read"


async def test_wrong_settings_of_a_sink_end_the_relay_with_their_error(
    database: AsyncEngine,
) -> None:
    sink = RecordingSink()

    async def refuse() -> None:
        raise ConfigurationError("exchange 'shop' is of another type")

    sink.open = refuse  # type: ignore[method-assign]
    relay = OutboxRelay(SqlOutboxStore(database), sink, FAST)

    with pytest.raises(ConfigurationError, match="another type"):
        await relay.run()


@pytest.mark.fault("R7")
async def test_stopped_relay_finishes_its_batch_and_hands_over_at_once(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    slow = RecordingSink()

    async def wait() -> None:
        entered.set()
        await go_on.wait()

    slow.before = wait
    patient = RelayConfig(lease=timedelta(minutes=10), loops=1, batch_size=10)
    await record(database, *range(30))
    first = OutboxRelay(SqlOutboxStore(database), slow, patient, on_signal=watch)
    await first.start()
    await entered.wait()
    stopping = asyncio.create_task(first.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping

    assert len(slow.got) == 10
    assert await states(database) == {"published": 10, "pending": 20}
    assert watch.of(s.RelayStopped)[0].pending == 20

    heir = RecordingSink()
    async with OutboxRelay(SqlOutboxStore(database), heir, patient, on_signal=watch):
        await watch.until(lambda: published(watch) == 30)
    assert not {e.event_id for e in heir.got} & {e.event_id for e in slow.got}


async def test_cancelled_relay_leaves_its_work_for_the_next(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    entered, stuck = asyncio.Event(), RecordingSink()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    stuck.before = hang
    await record(database, 1, 2)
    running = asyncio.create_task(OutboxRelay(SqlOutboxStore(database), stuck, FAST).run())
    await entered.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await states(database) == {"pending": 2}
    async with OutboxRelay(SqlOutboxStore(database), RecordingSink(), FAST, on_signal=watch):
        await watch.until(lambda: published(watch) == 2)


@pytest.mark.fault("R6")
async def test_two_relays_share_the_work_without_duplicates(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    one, two = RecordingSink(), RecordingSink()
    config = replace(FAST, lease=timedelta(seconds=6))  # none is lost on a busy machine
    relays = [
        OutboxRelay(SqlOutboxStore(database), sink, config, on_signal=watch) for sink in (one, two)
    ]

    async with relays[0], relays[1]:
        await watch.until(lambda: watch.of(s.LanesChanged)[-1].lanes == 32)
        await record(database, *[n % 97 for n in range(600)])
        await watch.until(lambda: published(watch) == 600)

    assert len(one.got) > 100
    assert len(two.got) > 100
    everything = [e.event_id for e in (*one.got, *two.got)]
    assert len(set(everything)) == len(everything) == 600
    for sink in (one, two):
        assert all(sink.of(a) == sorted(sink.of(a)) for a in range(97))
    assert not watch.of(s.LeaseWasLost)


@pytest.mark.fault("R8")
async def test_relay_whose_lease_ran_out_publishes_and_settles_nothing_more(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    """Its renewals hang, as if the process had been cut off from the database."""
    entered, stuck = asyncio.Event(), RecordingSink()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    stuck.before = hang
    store = SqlOutboxStore(database)
    await record(database, 1)
    relay = OutboxRelay(store, stuck, FAST, on_signal=watch)
    await relay.start()
    await entered.wait()

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    store.lease = never  # type: ignore[method-assign]
    await watch.until(lambda: bool(watch.of(s.LeaseWasLost)))

    assert watch.of(s.LeaseWasLost)[0].events == 1
    assert await states(database) == {"pending": 1}
    await relay.stop()


async def test_lease_that_is_renewed_while_a_batch_is_given_up_ends_no_relay(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    # given: a publisher that takes its time to give up, and a renewal that comes too late
    sink, entered, giving_up, may_end = RecordingSink(), *(asyncio.Event() for _ in range(3))
    store, may_renew, renewed = SqlOutboxStore(database), asyncio.Event(), asyncio.Event()
    lease = store.lease

    async def hang() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            giving_up.set()
            await may_end.wait()

    async def late(*values: Any) -> Any:
        await may_renew.wait()
        found = await lease(*values)
        asyncio.get_running_loop().call_soon(renewed.set)
        return found

    await record(database, 1)
    sink.before = hang
    async with OutboxRelay(store, sink, FAST, on_signal=watch), asyncio.timeout(30):
        await entered.wait()
        store.lease = late  # type: ignore[method-assign]
        await giving_up.wait()

        # when
        may_renew.set()
        await renewed.wait()
        sink.before = lambda: asyncio.sleep(0)
        may_end.set()

        # then
        await watch.until(lambda: sink.has(1))


class Deadly(RecordingSink):
    """Whoever publishes the event of number 4 does not live to tell."""

    def __init__(self) -> None:
        super().__init__()
        self.died = asyncio.Event()

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        if any(e.payload["n"] == 4 for e in envelopes):
            self.died.set()
            await asyncio.Event().wait()
        await super().publish_all(envelopes)


async def run_until_death(database: AsyncEngine, sink: Deadly, watch: SignalRecorder) -> bool:
    """One life of a relay; whether it died. A dead one releases nothing."""
    sink.died.clear()
    store = SqlOutboxStore(database)

    async def vanish(*_: object) -> None: ...

    store.release = vanish  # type: ignore[method-assign]
    config = RelayConfig(poll_interval=timedelta(milliseconds=50), batch_size=20)
    relay = OutboxRelay(store, sink, config, on_signal=watch)
    life = asyncio.create_task(relay.run())
    all_done = watch.until(lambda: sink.has(9) and bool(watch.of(s.EventFailed)))
    done, death = asyncio.create_task(all_done), asyncio.create_task(sink.died.wait())
    await asyncio.wait({done, death}, return_when=asyncio.FIRST_COMPLETED)
    if not sink.died.is_set():
        await relay.stop()
    for task in (life, done, death):
        task.cancel()
    await asyncio.wait({life})
    await expire(database)
    return sink.died.is_set()


async def expire(engine: AsyncEngine) -> None:
    """As if a lease time had passed."""
    async with engine.begin() as connection:
        for table in ("outbox_lanes", "outbox_relays"):
            past = f"UPDATE {table} SET expires_at = '2020-01-01 00:00:00+00'"  # noqa: S608
            await connection.execute(text(past))


@pytest.mark.fault("E2")
async def test_event_that_kills_its_relays_is_set_aside_and_the_rest_flows(
    database: AsyncEngine, watch: SignalRecorder
) -> None:
    await record(database, *range(10))
    sink, deaths = Deadly(), 0

    while await run_until_death(database, sink, watch):
        deaths += 1

    assert deaths == 1 + 3  # unmarked at first, then once for each crash that is allowed
    assert [e.payload["n"] for e in sink.got if e.payload["n"] == 4] == []
    assert await states(database) == {"published": 9, "failed": 1}
    assert watch.of(s.EventFailed)[0].reason == "3 relays died with this event in hand"
    assert sink.has(9)  # some of them twice, if they were in hand when a relay died

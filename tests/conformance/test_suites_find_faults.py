"""The suites themselves: whoever breaks a promise fails the test of that promise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from outrider.testing.conformance import PublisherSuite, SourceSuite, timing
from outrider.testing.conformance.crash import crash
from outrider.testing.conformance.events import events
from tests.support.conformance import broken_publishers, broken_sources
from tests.support.conformance.memory_harness import MemoryGroup, MemorySink

PUBLISHERS = {
    "ConfirmsTooEarly": "what_was_accepted_is_stored what_was_accepted_survives_a_killed_server",
    "Reorders": "what_was_accepted_is_stored many_events_of_many_aggregates_arrive_in_order",
    "SwallowsRefusals": "a_refused_event_harms_nobody_else",
    "GoesOnAfterARefusal": "accepted_events_are_a_prefix_when_some_are_refused",
    "GoesOnInSecret": "accepted_events_are_a_prefix_when_some_are_refused",
    "WaitsAfterARefusal": "a_refusal_ends_the_call_at_once",
    "AcceptsInAnOutage": "a_server_killed_in_mid_batch_breaks_no_order",
    "RefusesInAnOutage": "an_outage_is_neither_accepted_nor_refused",
    "TakesAnOutageForAMistake": "opening_in_an_outage_is_no_mistake",
    "StaysDown": "the_same_publisher_works_again_after_an_outage",
    "LosesHeaders": "attributes_arrive_exactly the_official_sdk_reads_what_arrives",
    "ManglesText": "payloads_arrive_byte_for_byte",
    "MixesUpCalls": "calls_side_by_side_do_not_mix_up",
    "BreaksAfterCancel": "a_cancelled_call_leaves_a_usable_publisher",
    "SwallowsCancellation": "a_cancelled_call_leaves_a_usable_publisher",
    "ClosesOnce": "closing_twice_is_safe_and_opening_again_works",
    "PrintsItsPassword": "nothing_printed_holds_a_secret",
    "PrintsPayloads": "nothing_printed_holds_a_secret",
}
SOURCES = {
    "LosesHeaders": "what_was_sent_arrives_equal_and_in_order",
    "WaitsForEver": "nothing_sent_is_nothing_received",
    "AcknowledgesNothing": "what_was_acknowledged_does_not_come_again",
    "AcknowledgesUnasked": "what_was_not_acknowledged_comes_again_oldest_first",
    "ForgetsOnClose": "what_was_not_acknowledged_comes_again_oldest_first",
    "NewestFirst": "what_was_not_acknowledged_comes_again_oldest_first",
    "DropsGarbage": "garbage_is_a_delivery_with_a_problem",
    "QuotesGarbage": "garbage_is_a_delivery_with_a_problem",
    "BreaksOnInvalidEvents": "an_event_that_is_not_valid_is_garbage_too",
    "NoDeadLetter": "a_dead_letter_is_stored_with_its_reason_and_does_not_come_again",
    "DeadLettersAndKeeps": "a_dead_letter_is_stored_with_its_reason_and_does_not_come_again",
    "DoesNotStandBy": "a_second_source_stands_by_and_takes_over",
    "DeadStayActive": "what_a_killed_consumer_held_comes_again_oldest_first",
    "SuspectsNothing": "what_killed_consumers_is_a_suspect_with_the_crashes_that_were_counted",
    "ForgetsCrashes": "what_killed_consumers_is_a_suspect_with_the_crashes_that_were_counted",
    "AcknowledgesUpTo": "acknowledging_out_of_order_loses_nothing",
    "IgnoresTheLimit": "no_more_is_received_than_asked_for",
    "LosesWhenCancelled": "cancelling_receive_loses_nothing",
    "NumbersDeliveriesAnew": "acknowledging_after_an_outage_is_harmless",
    "StaysDown": "an_open_source_goes_on_after_an_outage",
    "ClosesOnce": "closing_twice_is_safe_and_opening_again_works",
    "PrintsItsPassword": "nothing_printed_holds_a_secret",
}


def red(suite: type, harness: Callable[[], object], promises: Iterable[str]) -> set[str]:
    """Those whose tests fail, each with a harness of its own."""
    return {each for each in promises if fails(getattr(suite(), f"test_{each}"), harness())}


def fails(test: Callable[[Any], Any], harness: object) -> bool:
    try:
        asyncio.run(test(harness))
    except (Exception, pytest.fail.Exception):
        return True
    return False


def promises(suite: type) -> set[str]:
    return {name.removeprefix("test_") for name in dir(suite) if name.startswith("test_")}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "max_wait_s", 1)


@pytest.mark.parametrize("fault", PUBLISHERS)
def test_publisher_that_breaks_a_promise_fails_its_test(fault: str, impatient: None) -> None:
    broken, broken_promises = getattr(broken_publishers, fault), set(PUBLISHERS[fault].split())

    found = red(PublisherSuite, lambda: MemorySink(broken), broken_promises)

    assert found == broken_promises


@pytest.mark.parametrize("fault", SOURCES)
@pytest.mark.slow
def test_source_that_breaks_a_promise_fails_its_test(fault: str, impatient: None) -> None:
    broken, broken_promises = getattr(broken_sources, fault), set(SOURCES[fault].split())

    found = red(SourceSuite, lambda: MemoryGroup(broken), broken_promises)

    assert found == broken_promises


@pytest.mark.slow
def test_healthy_adapters_fail_none() -> None:
    assert red(PublisherSuite, MemorySink, promises(PublisherSuite)) == set()
    assert red(SourceSuite, MemoryGroup, promises(SourceSuite)) == set()


def test_every_promise_has_somebody_who_breaks_it() -> None:
    assert set(" ".join(PUBLISHERS.values()).split()) == promises(PublisherSuite)
    assert set(" ".join(SOURCES.values()).split()) == promises(SourceSuite)


async def test_consumer_that_fails_before_it_is_killed_is_told() -> None:
    group = MemoryGroup()
    await group.send(events(1))

    await crash(group.source, 1, 1, ())
    await group.stop()

    with pytest.raises(AssertionError, match="BrokerUnavailable"):
        await crash(group.source, 1, 1, ())

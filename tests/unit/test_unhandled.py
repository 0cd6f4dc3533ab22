"""Events that no handler subscribed to: told once per type, accepted or refused as set."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from uuid import uuid4

import pytest

from outrider import (
    ConfigurationError,
    ConsumerConfig,
    DomainEvent,
    EventConsumer,
    EventEnvelope,
    InProcessPublisher,
)
from outrider.errors import PublishFailed
from outrider.observability import log_signals
from outrider.outcomes import Refused
from outrider.signals import EventDeadLettered, EventUnhandled
from outrider.testing.memory_broker import MemoryBroker
from tests.support.doubles import RecordingHandler, SignalRecorder
from tests.support.shop import AccountOpened


def known() -> EventEnvelope:
    return AccountOpened(account_id=uuid4(), email="a@example.org").to_envelope()


def unknown() -> EventEnvelope:
    return DomainEvent("nobody.knows", "nobody", 1, {}).to_envelope()


def of_another_type() -> list[tuple[str, RecordingHandler]]:
    return [("order.placed", RecordingHandler())]


async def test_relay_accepts_a_known_type_without_handler_and_tells_it_once() -> None:
    told, first = SignalRecorder(), known()
    publisher = InProcessPublisher(of_another_type(), on_signal=told)

    await publisher.publish_all([first, known(), known()])

    assert told.seen == [
        EventUnhandled(event_id=first.event_id, event_type="AccountOpened", correlation_id=None)
    ]


@pytest.mark.parametrize(
    ("unhandled", "envelope", "reason"),
    [
        ("refuse", known(), "no handler subscribed to its type"),
        ("refuse", unknown(), "no class with its type has been imported"),
        ("accept", unknown(), "no class with its type has been imported"),
    ],
)
async def test_relay_refuses_unknown_types_and_with_the_setting_all_without_handler(
    unhandled: str, envelope: EventEnvelope, reason: str
) -> None:
    publisher = InProcessPublisher(of_another_type(), unhandled=unhandled)  # type: ignore[arg-type]

    with pytest.raises(PublishFailed) as caught:
        await publisher.publish(envelope)

    [outcome] = caught.value.outcomes
    assert isinstance(outcome, Refused)
    assert reason in outcome.reason


async def test_relay_hands_an_unknown_type_to_a_handler_of_every_type() -> None:
    handler = RecordingHandler()

    await InProcessPublisher([("*", handler)], unhandled="refuse").publish(unknown())

    assert handler.calls == 1


async def test_later_events_of_an_aggregate_wait_behind_one_without_handler() -> None:
    publisher = InProcessPublisher([("thing.made", handler := RecordingHandler())])
    events = [DomainEvent(kind, "thing", 1, {}) for kind in ("nobody.knows", "thing.made")]

    with pytest.raises(PublishFailed):
        await publisher.publish_all([event.to_envelope() for event in events])

    assert handler.calls == 0


@pytest.mark.parametrize("unhandled", ["accept", "refuse"])
async def test_consumer_acknowledges_or_dead_letters_what_it_has_no_handler_for(
    unhandled: str,
) -> None:
    broker = MemoryBroker(receive_wait=timedelta(milliseconds=10))
    told, sent = SignalRecorder(), [unknown(), unknown()]
    config = ConsumerConfig(unhandled=unhandled)  # type: ignore[arg-type]
    await broker.publisher().publish_all(sent)

    consumer = EventConsumer(broker.source(), of_another_type(), config, on_signal=told)
    async with asyncio.timeout(10), consumer:
        await broker.handled()

    letters = [letter.reason for letter in broker.dead_letters]
    accepted = unhandled == "accept"
    assert letters == ([] if accepted else ["no handler subscribed to its type"] * 2)
    assert [s.event_id for s in told.of(EventUnhandled)] == [sent[0].event_id] * accepted
    assert len(told.of(EventDeadLettered)) == len(letters)


def test_unhandled_type_is_logged_as_a_warning_with_the_cure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    envelope = unknown()

    log_signals(
        EventUnhandled(
            event_id=envelope.event_id, event_type="nobody.knows", correlation_id="req-1"
        )
    )

    [record] = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "outrider.consumer")
    assert 'subscribe a handler, or set unhandled="refuse"' in record.getMessage()
    facts = (vars(record)["event_type"], vars(record)["correlation_id"])
    assert facts == ("nobody.knows", "req-1")


@pytest.mark.parametrize("setting", ["drop", "acknowledge", None])
def test_other_words_for_unhandled_are_refused(setting: str) -> None:
    for make in (InProcessPublisher, ConsumerConfig):
        with pytest.raises(ConfigurationError, match='unhandled must be "accept" or "refuse"'):
            make(unhandled=setting)  # type: ignore[operator]


def test_publisher_without_a_slot_for_any_handler_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="concurrency must be at least 1"):
        InProcessPublisher(concurrency=0)


async def test_what_has_a_handler_is_not_told() -> None:
    told = SignalRecorder()
    publisher = InProcessPublisher([("AccountOpened", RecordingHandler())], on_signal=told)

    await publisher.publish(known())

    assert told.of(EventUnhandled) == []

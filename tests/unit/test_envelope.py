"""The envelope: ids, metadata that keeps its secret, JSON, and reading the payload."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from outrider import DecodeError, EventEnvelope, EventId, EventMetadata, InvalidEvent
from outrider.events.cloudevents import from_structured
from outrider.recording.rows import row_of
from tests.support.canary import CANARY
from tests.support.shop import AccountOpened, OrderPlaced


def envelope(**fields: Any) -> EventEnvelope:
    usual: dict[str, Any] = {
        "event_id": EventId.new(),
        "event_type": "session.created",
        "aggregate_type": "session",
        "aggregate_id": "s-1",
        "occurred_at": datetime(2026, 2, 8, 12, 0, 0, 1, tzinfo=UTC),
        "payload": {"title": "Käse", "big": 2**90},
    }
    return EventEnvelope(**{**usual, **fields})


def test_event_id_is_unique_and_has_a_string_form() -> None:
    first, second = EventId.new(), EventId.new()

    assert first != second
    assert EventId.from_string(str(first)) == first
    assert msgspec.json.encode(first) == f'"{first}"'.encode()


def test_event_id_without_arguments_is_a_new_one() -> None:
    first, second = EventId(), EventId()

    assert first < second
    assert first.version == 7


@pytest.mark.parametrize("text", ["test-id-123", "1", "é", "x" * 36, "0" * 32, "{" + "0" * 36])
def test_event_id_keeps_any_text(text: str) -> None:
    event_id = EventId.from_string(text)

    assert str(event_id) == text
    assert event_id == EventId.from_string(text)
    assert event_id != EventId.from_string(text, "/another/producer")
    assert str(copy.deepcopy(event_id)) == str(pickle.loads(pickle.dumps(event_id))) == text  # noqa: S301
    assert json.dumps({"id": event_id}, default=str) == json.dumps({"id": text})
    received = EventEnvelope.from_json(envelope(event_id=event_id).to_json())
    assert (received.event_id, str(received.event_id)) == (event_id, text)
    assert json.loads(received.to_json())["event_id"] == text


@pytest.mark.parametrize("text", ["", "x" * 256, "two\nlines", None, 7])
def test_text_that_cannot_be_an_event_id_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="an event id must have 1 to 255 printable characters"):
        EventId.from_string(text)


def test_id_that_is_no_uuid_can_be_received_but_not_recorded() -> None:
    received = envelope(event_id=EventId.from_string("test-id-123"))

    with pytest.raises(InvalidEvent, match=r"session\.created: event_id: test-id-123 is no UUID"):
        row_of(received)


def test_builders_add_metadata_and_leave_the_original_alone() -> None:
    plain, cause = envelope(), uuid4()

    full = (
        plain.with_correlation_id("req-1")
        .with_causation_id(cause)
        .with_user_id("u-1")
        .with_trace_id("t-1")
    )

    assert full.metadata == EventMetadata(
        correlation_id="req-1", causation_id=str(cause), user_id="u-1", trace_id="t-1"
    )
    assert plain.metadata == EventMetadata()
    assert full.with_metadata(plain.metadata) == plain


def test_json_round_trip_keeps_everything() -> None:
    given = envelope(event_version=4).with_user_id("u-1").with_correlation_id("c")

    again = EventEnvelope.from_json(given.to_json())

    assert again == given
    assert again.payload["big"] == 2**90
    assert again.occurred_at.microsecond == 1
    assert again.metadata.user_id == "u-1"


def test_decimals_in_a_payload_are_exact_text() -> None:
    given = envelope(payload={"total": Decimal("0.10"), "at": datetime(2026, 1, 1, tzinfo=UTC)})

    assert given.payload == {"total": "0.10", "at": "2026-01-01T00:00:00Z"}
    assert EventEnvelope.from_json(given.to_json()) == given


def test_payload_as_reads_events_and_any_other_type() -> None:
    @dataclass
    class Title:
        title: str
        big: int

    event = AccountOpened(account_id=uuid4(), email="a@example.org")

    assert event.to_envelope().payload_as(AccountOpened) == event
    assert envelope().payload_as(Title) == Title("Käse", 2**90)
    with pytest.raises(DecodeError, match=r"session.created as Title.*`title`"):
        envelope(payload={}).payload_as(Title)
    with pytest.raises(DecodeError, match=r"AccountOpened: is not a order\.placed"):
        event.to_envelope().payload_as(OrderPlaced)


def test_envelope_never_changes() -> None:
    with pytest.raises(AttributeError, match="never changes"):
        envelope().event_type = "other"


def test_payload_and_user_stay_out_of_every_printed_form(caplog: pytest.LogCaptureFixture) -> None:
    secret = envelope(payload={"x": CANARY}).with_user_id(CANARY).with_correlation_id("req-1")

    with caplog.at_level(logging.DEBUG):
        logging.getLogger("app").info("got %s %r %s", secret, secret, secret.metadata)
    try:
        raise RuntimeError(secret, secret.metadata)
    except RuntimeError:
        trace = traceback.format_exc()

    metadata = secret.metadata
    texts = [repr(metadata), str(metadata), f"{metadata}", f"{metadata!r:>80}", "%s" % metadata]  # noqa: UP031
    texts += [repr(secret), str(secret), f"{secret}", repr([metadata]), repr({"m": metadata})]
    texts += [caplog.text, trace, str(metadata.__rich_repr__())]
    assert all(CANARY not in text for text in texts)
    assert "req-1" in repr(metadata)
    assert metadata.user_id == CANARY


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"event_type": "no spaces"}, "event type"),
        ({"aggregate_id": ""}, "session.created: aggregate_id"),
        ({"aggregate_id": "a\r\nb"}, "session.created: aggregate_id"),
        ({"aggregate_id": 5}, "session.created: aggregate_id"),
        ({"aggregate_type": "x" * 256}, "session.created: aggregate_type"),
        ({"occurred_at": datetime(2026, 1, 1)}, "occurred_at: naive datetime"),
        ({"occurred_at": "2026"}, "occurred_at: expected datetime, got str"),
        ({"event_id": "x"}, "event_id: expected UUID, got str"),
        ({"payload": {"x": {1, 2.5, float("nan")}}}, r"session.created: x\["),
    ],
)
def test_envelope_refuses_what_cannot_travel(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEvent, match=message):
        envelope(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "event envelope"),
        ("{}", "missing required field `event_id`"),
        ('{"event_id": 1}', r"Expected `str`, got `int` - at `\$.event_id`"),
        (envelope().to_json().replace(b'"event_id":"', b'"event_id":"' + b"x" * 255), "1 to 255"),
    ],
)
def test_unreadable_envelopes_are_decode_errors(text: str | bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        EventEnvelope.from_json(text)


@pytest.mark.fault("E6", "E8")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"a": "\xff"}', "no valid Unicode"),
        ('{"a": "\ud800"}', "no valid Unicode"),
        (b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deeply"),
    ],
)
def test_bytes_that_are_no_text_and_deep_nesting_are_decode_errors(
    body: bytes | str, problem: str
) -> None:
    """So a consumer sets the message aside at once, instead of trying again."""
    received = envelope(data=body)

    for read in (
        lambda: received.payload,
        lambda: received.payload_as(dict[str, Any]),  # type: ignore[arg-type]
        lambda: from_structured(body),
    ):
        with pytest.raises(DecodeError, match=problem):
            read()


def test_error_quotes_little_of_a_strangers_type() -> None:
    with pytest.raises(InvalidEvent) as caught:
        envelope(event_type="é" * 10_000)

    assert len(str(caught.value)) < 500


def test_unknown_envelope_field_is_named() -> None:
    text = json.dumps({**json.loads(envelope().to_json()), "extra": 1})

    with pytest.raises(DecodeError, match="unknown field `extra`"):
        EventEnvelope.from_json(text)


def test_envelopes_compare_by_content_not_by_spelling() -> None:
    given = envelope(payload={"a": 1, "b": 2})
    spelled = EventEnvelope(
        **{
            **{name: getattr(given, name) for name in given.__slots__ if name != "_payload"},
            "data": b'{"b": 2, "a": 1}',
        }
    )

    assert spelled == given
    assert hash(spelled) == hash(given)
    assert given != envelope(event_id=UUID(int=1))
    assert given.with_user_id("x") != given
    assert given != "given"
    assert envelope(occurred_at=datetime.now(UTC) + timedelta(1)) != envelope()

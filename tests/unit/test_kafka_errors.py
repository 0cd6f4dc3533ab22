"""A value that an error of aiokafka or a record quotes reaches no error text and no log."""

from __future__ import annotations

import ssl

import pytest
from aiokafka import errors
from aiokafka.structs import ConsumerRecord

from outrider import BrokerUnavailable, ConfigurationError
from outrider.brokers.kafka.connection import translate
from outrider.brokers.kafka.messages import to_delivery
from tests.support.canary import CANARY
from tests.support.signal_logs import logged

VALID = {
    "ce_specversion": "1.0",
    "ce_id": "0198c2a4-0000-7000-8000-000000000000",
    "ce_type": "order.placed",
    "ce_subject": "o-1",
    "ce_time": "2026-01-01T00:00:00+00:00",
    "ce_aggregatetype": "order",
    "ce_eventversion": "1",
}


def tls_error() -> Exception:
    error = ssl.SSLEOFError(8, CANARY)
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    return error


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (errors.KafkaError(CANARY), BrokerUnavailable, "KafkaError"),
        (errors.KafkaConnectionError(CANARY), BrokerUnavailable, "KafkaConnectionError"),
        (errors.CorruptRecordException(CANARY), BrokerUnavailable, "CorruptRecordException"),
        (errors.MessageSizeTooLargeError(CANARY), BrokerUnavailable, "MessageSizeTooLargeError"),
        (errors.ConsumerStoppedError(CANARY), BrokerUnavailable, "ConsumerStoppedError"),
        (errors.SaslAuthenticationFailed(CANARY), ConfigurationError, "SaslAuthenticationFailed"),
        (errors.InvalidTopicError(CANARY), ConfigurationError, "InvalidTopicError"),
        (OSError(CANARY), BrokerUnavailable, "OSError"),
        (TimeoutError(CANARY), BrokerUnavailable, "no answer in time"),
        (UnicodeError(CANARY), ConfigurationError, "the host name is not valid"),
        (tls_error(), BrokerUnavailable, "no TLS: UNEXPECTED_EOF_WHILE_READING"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_value_quoted_by_an_error_is_repeated_nowhere(
    error: Exception, kind: type[Exception], reason: str
) -> None:
    translated = translate(error, "kafka://host:9092")

    assert type(translated) is kind
    assert str(translated).startswith(f"Kafka at kafka://host:9092: {reason}")
    assert translated.__cause__ is error
    assert CANARY not in f"{translated!r} {logged(str(translated))}"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ce_specversion", CANARY.encode()),
        ("ce_id", f"\n{CANARY}".encode()),
        ("ce_type", f"order placed {CANARY}".encode()),
        ("ce_time", CANARY.encode()),
        ("ce_time", b"2026-01-01T00:00:00"),
        ("ce_subject", f"\n{CANARY}".encode()),
        ("ce_aggregatetype", f"{CANARY}\x00".encode()),
        ("ce_eventversion", CANARY.encode()),
        ("ce_id", CANARY.encode() + b"\xff"),
    ],
)
def test_value_of_a_record_that_is_no_event_is_repeated_nowhere(header: str, value: bytes) -> None:
    headers = {name: text.encode() for name, text in VALID.items()} | {header: value}

    delivery = to_delivery(record(headers))

    assert delivery.envelope is None
    assert delivery.problem
    assert CANARY not in logged(delivery.problem)


def test_record_with_valid_headers_is_an_event() -> None:
    delivery = to_delivery(record({name: text.encode() for name, text in VALID.items()}))

    assert delivery.problem is None


def record(headers: dict[str, bytes]) -> ConsumerRecord:
    return ConsumerRecord(
        topic="shop",
        partition=0,
        offset=1,
        timestamp=0,
        timestamp_type=0,
        key=b"k",
        value=CANARY.encode(),
        checksum=None,
        serialized_key_size=1,
        serialized_value_size=1,
        headers=tuple(headers.items()),
    )

"""A value that Redis, its client or an entry quotes reaches no error text and no log."""

from __future__ import annotations

import ssl

import pytest
from redis import exceptions

from outrider import BrokerUnavailable, ConfigurationError
from outrider.brokers.redis.connection import translate
from outrider.brokers.redis.messages import to_delivery
from tests.support.canary import CANARY
from tests.support.signal_logs import logged

VALID = {
    b"ce-specversion": b"1.0",
    b"ce-id": b"0198c2a4-0000-7000-8000-000000000000",
    b"ce-type": b"order.placed",
    b"ce-subject": b"o-1",
    b"ce-time": b"2026-01-01T00:00:00+00:00",
    b"ce-aggregatetype": b"order",
    b"ce-eventversion": b"1",
    b"data": CANARY.encode(),
}


def wrapped(cause: Exception) -> Exception:
    """As the client raises it."""
    error = exceptions.ConnectionError(f"Error connecting to {CANARY}")
    error.__cause__ = cause
    return error


def tls_error() -> Exception:
    error = ssl.SSLEOFError(8, CANARY)
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    return error


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (exceptions.ResponseError(CANARY), BrokerUnavailable, "ResponseError"),
        (
            exceptions.ResponseError(
                f"unknown command 'XADD', with args beginning with: '{CANARY}'"
            ),
            ConfigurationError,
            "unknown command 'XADD'",
        ),
        (
            exceptions.ResponseError(f"value of '{CANARY}' leads to a syntax error"),
            ConfigurationError,
            "syntax error",
        ),
        (
            exceptions.ResponseError(f"NOGROUP No such key '{CANARY}' or consumer group"),
            BrokerUnavailable,
            "NOGROUP No such key",
        ),
        (
            exceptions.NoPermissionError(f"User {CANARY} has no permissions to access a key"),
            ConfigurationError,
            "no permissions to access a key",
        ),
        (exceptions.NoPermissionError(CANARY), ConfigurationError, "NoPermissionError"),
        (exceptions.AuthenticationError(CANARY), ConfigurationError, "AuthenticationError"),
        (
            exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            BrokerUnavailable,
            "command not allowed when used memory > 'maxmemory'",
        ),
        (exceptions.MovedError(f"3999 {CANARY}:6381"), ConfigurationError, "it is a node of a"),
        (exceptions.ExecAbortError(CANARY), BrokerUnavailable, "ExecAbortError"),
        (exceptions.ConnectionError(CANARY), BrokerUnavailable, "ConnectionError"),
        (exceptions.InvalidResponse(CANARY), BrokerUnavailable, "InvalidResponse"),
        (exceptions.DataError(CANARY), BrokerUnavailable, "DataError"),
        (exceptions.TimeoutError(CANARY), BrokerUnavailable, "no answer in time"),
        (wrapped(OSError(111, CANARY)), BrokerUnavailable, "Connection refused"),
        (wrapped(UnicodeError(CANARY)), ConfigurationError, "the host name is not valid"),
        (wrapped(tls_error()), BrokerUnavailable, "no TLS: UNEXPECTED_EOF_WHILE_READING"),
        (wrapped(ValueError(CANARY)), BrokerUnavailable, "ConnectionError"),
        (OSError(CANARY), BrokerUnavailable, "OSError"),
        (TimeoutError(CANARY), BrokerUnavailable, "no answer in time"),
    ],
)
def test_value_quoted_by_an_error_is_repeated_nowhere(
    error: Exception, kind: type[Exception], reason: str
) -> None:
    translated = translate(error, "redis://host:6379/0")

    assert type(translated) is kind
    assert str(translated).startswith(f"Redis at redis://host:6379/0: {reason}")
    assert translated.__cause__ is error
    assert CANARY not in f"{translated!r} {logged(str(translated))}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"ce-specversion", CANARY.encode()),
        (b"ce-id", f"\n{CANARY}".encode()),
        (b"ce-type", f"order placed {CANARY}".encode()),
        (b"ce-time", CANARY.encode()),
        (b"ce-time", b"2026-01-01T00:00:00"),
        (b"ce-subject", f"\n{CANARY}".encode()),
        (b"ce-aggregatetype", f"{CANARY}\x00".encode()),
        (b"ce-eventversion", CANARY.encode()),
        (b"ce-id", CANARY.encode() + b"\xff"),
    ],
)
def test_value_of_an_entry_that_is_no_event_is_repeated_nowhere(field: bytes, value: bytes) -> None:
    found = to_delivery(b"1-1", fields({**VALID, field: value}))
    odd = to_delivery(b"1-1", [CANARY.encode()])

    for delivery in (found, odd):
        assert delivery.envelope is None
        assert delivery.problem
        assert CANARY not in logged(delivery.problem)


def test_entry_with_valid_fields_is_an_event() -> None:
    assert to_delivery(b"1-1", fields(VALID)).problem is None


def fields(named: dict[bytes, bytes]) -> list[bytes]:
    return [part for pair in named.items() for part in pair]

"""A value that a NATS server, nats-py or a message quotes reaches no error text and no log."""

from __future__ import annotations

import json
import ssl
from typing import Any, cast

import pytest
from nats import errors
from nats.aio.msg import Msg
from nats.js.errors import (
    APIError,
    BadRequestError,
    NoStreamResponseError,
    ServerError,
    ServiceUnavailableError,
)

from outrider import BrokerUnavailable, ConfigurationError
from outrider.brokers import Refused, Unknown
from outrider.brokers.nats.config import Server
from outrider.brokers.nats.connection import Connection, translate
from outrider.brokers.nats.messages import MessageWriter, to_delivery
from outrider.brokers.nats.pipeline import Pipeline
from tests.support.canary import CANARY
from tests.support.signal_logs import logged

DENIED = 'permissions violation for publish to "events.order.placed"'
VALID = {
    "ce-specversion": "1.0",
    "ce-id": "0198c2a4-0000-7000-8000-000000000000",
    "ce-type": "order.placed",
    "ce-subject": "o-1",
    "ce-time": "2026-01-01T00:00:00+00:00",
    "ce-aggregatetype": "order",
    "ce-eventversion": "1",
}


def tls_error() -> Exception:
    error = ssl.SSLEOFError(8, CANARY)
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    return error


def slow_consumer() -> Exception:
    return errors.SlowConsumerError(CANARY, CANARY, 1, cast("Any", CANARY))


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (errors.Error(f"nats: '{CANARY}'"), BrokerUnavailable, "Error"),
        (errors.Error(f"nats: authorization {CANARY}"), ConfigurationError, "Error"),
        (errors.Error("nats: 'Authorization Violation'"), ConfigurationError, "Authorization Viol"),
        (errors.BadHeaderError(CANARY), BrokerUnavailable, "BadHeaderError"),
        (errors.MsgAlreadyAckdError(CANARY), BrokerUnavailable, "MsgAlreadyAckdError"),
        (slow_consumer(), BrokerUnavailable, "SlowConsumerError"),
        (errors.UnexpectedEOF(CANARY), BrokerUnavailable, "unexpected EOF"),
        (errors.TimeoutError(CANARY), BrokerUnavailable, "no answer in time"),
        (APIError(code=409, err_code=1, description=CANARY), BrokerUnavailable, "JetStream error"),
        (ServerError(500, CANARY, 10052), ConfigurationError, "JetStream error (10052)"),
        (ServerError(500, CANARY, cast("Any", CANARY)), BrokerUnavailable, "JetStream error ("),
        (BadRequestError(400, "stream not found", 10059), BrokerUnavailable, "stream not found ("),
        (ServiceUnavailableError(503, CANARY, 10077), BrokerUnavailable, "JetStream error (10077)"),
        (ServiceUnavailableError(503, CANARY), BrokerUnavailable, "nobody answers"),
        (NoStreamResponseError(CANARY), BrokerUnavailable, "nobody answers"),
        (FileNotFoundError(2, "No such file", CANARY), ConfigurationError, "credentials or nkey"),
        (OSError(CANARY), BrokerUnavailable, "OSError"),
        (UnicodeError(CANARY), ConfigurationError, "the host name is not valid"),
        (ValueError(CANARY), ConfigurationError, "not valid: host, credentials or seed"),
        (tls_error(), BrokerUnavailable, "no TLS: UNEXPECTED_EOF_WHILE_READING"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_value_quoted_by_an_error_is_repeated_nowhere(
    error: Exception, kind: type[Exception], reason: str
) -> None:
    translated = translate(error, "nats://host:4222")

    assert type(translated) is kind
    assert str(translated).startswith(f"NATS at nats://host:4222: {reason}")
    assert translated.__cause__ is error
    assert CANARY not in f"{translated!r} {logged(str(translated))}"


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [(400, 10054, Refused), (503, 10077, Unknown), (400, CANARY, Refused)],
)
async def test_value_quoted_by_the_answer_to_an_event_is_repeated_nowhere(
    code: int, err_code: object, kind: type
) -> None:
    error = {"code": code, "err_code": err_code, "description": f"bad message: {CANARY}"}

    outcome = pipeline()._outcome(answer({"error": error, "stream": "EVENTS"}))

    assert isinstance(outcome, kind)
    assert "JetStream error" in outcome.reason
    assert CANARY not in logged(outcome.reason)


async def test_answer_in_known_words_is_quoted() -> None:
    error = {"code": 400, "err_code": 10054, "description": "message size exceeds maximum allowed"}

    outcome = pipeline()._outcome(answer({"error": error}))

    assert outcome == Refused("message size exceeds maximum allowed (10054)")


async def test_only_the_subject_of_a_permission_error_is_repeated() -> None:
    connection = connection_to_nobody()

    await connection._on_error(errors.Error(f"nats: {DENIED} {CANARY}"))
    translated = translate(errors.TimeoutError(), "nats://host", connection.permission_error)

    assert type(translated) is ConfigurationError
    assert str(translated) == f"NATS at nats://host: {DENIED}"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ce-specversion", CANARY),
        ("ce-id", f"\n{CANARY}"),
        ("ce-type", f"order placed {CANARY}"),
        ("ce-time", CANARY),
        ("ce-time", "2026-01-01T00:00:00"),
        ("ce-subject", f"%0A{CANARY}"),
        ("ce-aggregatetype", f"{CANARY}%00"),
        ("ce-eventversion", CANARY),
    ],
)
def test_value_of_a_message_that_is_no_event_is_repeated_nowhere(header: str, value: str) -> None:
    delivery = to_delivery(message(VALID | {header: value}))

    assert delivery.envelope is None
    assert delivery.problem
    assert CANARY not in logged(delivery.problem)


def test_message_with_valid_headers_is_an_event() -> None:
    assert to_delivery(message(VALID)).problem is None


def connection_to_nobody() -> Connection:
    return Connection(Server(host="host", port=4222, tls=False, login={}))


def pipeline() -> Pipeline:
    return Pipeline(connection_to_nobody(), "EVENTS", MessageWriter("events", "outrider", "nats"))


def answer(body: dict[str, object]) -> Msg:
    return Msg(cast("Any", None), data=json.dumps(body).encode())


def message(headers: dict[str, str]) -> Msg:
    reply = "$JS.ACK.EVENTS.billing.1.1.1.0.0"
    return Msg(cast("Any", None), "events.x", reply, CANARY.encode(), headers)

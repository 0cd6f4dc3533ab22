"""A value that RabbitMQ or a message quotes reaches no error text and no log."""

from __future__ import annotations

import asyncio
import ssl
import struct

import pytest
from pamqp import commands, encode

from outrider import BrokerUnavailable, ConfigurationError
from outrider.brokers import PublishFailed
from outrider.brokers.rabbitmq import Exchange, RabbitMQPublisher, Topology
from outrider.brokers.rabbitmq.amqp import (
    HEADERS,
    ClosedByBroker,
    ConnectionLost,
    Message,
    write_header,
)
from outrider.brokers.rabbitmq.connection import translate
from outrider.brokers.rabbitmq.messages import to_delivery
from outrider.outcomes import Unknown
from tests.support.brokers.amqp_peer import Conversation, envelope, listening, publishing
from tests.support.canary import CANARY
from tests.support.signal_logs import logged

VALID = {
    "ce-specversion": "1.0",
    "ce-id": "0198c2a4-0000-7000-8000-000000000000",
    "ce-type": "order.placed",
    "ce-subject": "o-1",
    "ce-time": "2026-01-01T00:00:00+00:00",
    "ce-aggregatetype": "order",
    "ce-eventversion": "1",
}


def closed(code: int, text: str) -> ClosedByBroker:
    return ClosedByBroker(code, text)


def tls_error() -> Exception:
    error = ssl.SSLEOFError(8, CANARY)
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    return error


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (
            closed(501, f"FRAME_ERROR - type 3, first 16 octets = <<{CANARY}>>: {{invalid}}"),
            BrokerUnavailable,
            "FRAME_ERROR - code 501",
        ),
        (
            closed(406, f"PRECONDITION_FAILED - user_id property set to '{CANARY}' but was 'u'"),
            ConfigurationError,
            "PRECONDITION_FAILED - code 406",
        ),
        (
            closed(
                403, f"ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for '{CANARY}'"
            ),
            ConfigurationError,
            "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused",
        ),
        (
            closed(403, f"ACCESS_REFUSED - Login was refused using authentication {CANARY}"),
            ConfigurationError,
            "ACCESS_REFUSED - code 403",
        ),
        (
            closed(530, f"NOT_ALLOWED - connection limit is reached for '{CANARY}'"),
            BrokerUnavailable,
            "NOT_ALLOWED - code 530",
        ),
        (closed(999, CANARY), BrokerUnavailable, "CLOSED - code 999"),
        (ConnectionLost("connection lost: end of stream"), BrokerUnavailable, "connection lost"),
        (ValueError(CANARY), BrokerUnavailable, "ValueError"),
        (OSError(CANARY), BrokerUnavailable, "OSError"),
        (OSError(111, CANARY), BrokerUnavailable, "Connection refused"),
        (TimeoutError(CANARY), BrokerUnavailable, "no answer in time"),
        (UnicodeError(CANARY), ConfigurationError, "the host name is not valid"),
        (tls_error(), BrokerUnavailable, "no TLS: UNEXPECTED_EOF_WHILE_READING"),
    ],
)
def test_value_quoted_by_an_error_is_repeated_nowhere(
    error: Exception, kind: type[Exception], reason: str
) -> None:
    translated = translate(error, "amqp://host:5672/")

    assert type(translated) is kind
    assert str(translated).startswith(f"RabbitMQ at amqp://host:5672/: {reason}")
    assert translated.__cause__ is error
    assert CANARY not in f"{translated!r} {logged(str(translated))}"


@pytest.mark.parametrize(
    "text",
    [
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN",
        "ACCESS_REFUSED - write access to topic 'a.b' in exchange 'e' in vhost '/' refused",
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
        "ACCESS_REFUSED - no exchange 'e' in vhost '/'",
        "ACCESS_REFUSED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received none"
        " but current is the value '5' of type 'signedint'",
    ],
)
def test_text_that_names_only_exchanges_queues_and_vhosts_is_kept(text: str) -> None:
    assert str(closed(403, text)) == text


async def test_reason_of_a_block_and_of_a_lost_channel_is_repeated_nowhere() -> None:
    blocks = asyncio.Event()

    async def script(talk: Conversation) -> None:
        async for _ in talk.messages():
            if blocks.is_set():
                talk.close_channel(501, f"FRAME_ERROR - {CANARY}")
            else:
                blocks.set()
                talk.say(commands.Connection.Blocked(CANARY), 0)

    reasons = []
    async with listening(script) as peer, publishing(peer.url, seconds=0.2) as publisher:
        for _ in range(2):
            with pytest.raises(PublishFailed) as caught:
                await publisher.publish(envelope())
            [outcome] = caught.value.outcomes
            assert isinstance(outcome, Unknown)
            reasons.append(outcome.reason)

    assert "blocked by the broker: no known reason" in reasons[0]
    assert "FRAME_ERROR - code 501" in reasons[1]
    assert CANARY not in logged(" ".join(reasons))


def test_argument_that_amqp_cannot_express_is_not_quoted() -> None:
    topology = Topology((Exchange("e", arguments={"x": [CANARY, 2**80]}),))  # type: ignore[dict-item]

    with pytest.raises(ConfigurationError, match="AMQP cannot express: TypeError") as caught:
        RabbitMQPublisher("amqp://host/", topology=topology)

    assert CANARY not in str(caught.value)
    assert str(2**80) not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ce-specversion", CANARY),
        ("ce-id", f"\n{CANARY}"),
        ("ce-type", f"order placed {CANARY}"),
        ("ce-time", CANARY),
        ("ce-time", "2026-01-01T00:00:00"),
        ("ce-subject", f"\n{CANARY}"),
        ("ce-aggregatetype", f"{CANARY}\x00"),
        ("ce-eventversion", CANARY),
    ],
)
def test_value_of_a_message_that_is_no_event_is_repeated_nowhere(header: str, value: str) -> None:
    found = to_delivery(message({**VALID, header: value}))
    plain = to_delivery(message({"event_type": CANARY, "created_at": CANARY}))
    broken = to_delivery(Message(1, False, b"", b"", struct.pack(">HHQ", 60, 0, 0), b""))

    for delivery in (found, plain, broken):
        assert delivery.envelope is None
        assert delivery.problem
        assert CANARY not in logged(delivery.problem)


def test_message_with_valid_headers_is_an_event() -> None:
    assert to_delivery(message(VALID)).problem is None


def message(headers: dict[str, str]) -> Message:
    table = encode.field_table(headers)
    return Message(1, False, b"", b"", write_header({HEADERS: table}, 2), CANARY.encode())

"""Kafka's settings: what is wrong is said at once, and no secret is shown."""

from __future__ import annotations

import ssl
from datetime import timedelta

import pytest

from outrider import ConfigurationError
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher, KafkaSource
from tests.support.canary import CANARY


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("kafka://one:9092,two:9093", "kafka://one:9092,two:9093"),
        ("localhost", "kafka://localhost"),
        ("kafka://[::1]:9092/", "kafka://[::1]:9092"),
    ],
)
async def test_publisher_says_where_it_sends_to(url: str, shown: str) -> None:
    publisher = KafkaPublisher(url, "shop.{aggregate_type}")

    assert str(publisher) == f"<KafkaPublisher {shown} topic 'shop.{{aggregate_type}}'>"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "amqp://host",
        "kafka://host:0",
        "kafka://host:70000",
        "kafka://one,,two",
        f"kafka://user@{CANARY}:host",
        f"kafka://host:9092?password={CANARY}",
    ],
)
def test_bad_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="bad Kafka URL") as caught:
        KafkaPublisher(url)

    assert CANARY not in str(caught.value)


def test_all_problems_of_a_config_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        KafkaConfig(
            connect_timeout=timedelta(0),
            takeover_after=timedelta(0),
            commit_interval=timedelta(seconds=-1),
            partitions=0,
            replicas=0,
            ssl_context=ssl.create_default_context(),
            sasl_plain_password=CANARY,
        )

    assert CANARY not in str(caught.value)
    for name in ("connect_timeout", "takeover_after", "partitions", "replicas"):
        assert f"{name} must be positive" in str(caught.value)
    for name in ("commit_interval must not be negative", "ssl_context", "password"):
        assert name in str(caught.value)


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="security_protocol must be"):
        KafkaConfig(security_protocol="TLS")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("PLAIN", "needs sasl_plain_username"),
        ("SCRAM-SHA-512", "needs sasl_plain_username"),
        ("OAUTHBEARER", "needs sasl_oauth_token_provider"),
        ("MD5", "must be one of"),
    ],
)
def test_login_that_cannot_work_is_refused(mechanism: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        KafkaConfig(security_protocol="SASL_SSL", sasl_mechanism=mechanism)


async def test_credentials_are_never_printed() -> None:
    config = KafkaConfig(
        security_protocol="SASL_SSL", sasl_plain_username=CANARY, sasl_plain_password=CANARY
    )
    publisher = KafkaPublisher("host", config=config)
    source = KafkaSource("host", "events", group="billing", config=config)

    assert CANARY not in f"{config!r} {publisher!r} {source!r}"


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250, "{tenant}", "{", "{0}", "{}"])
def test_impossible_topic_is_refused(topic: str) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        KafkaPublisher("host", topic)


@pytest.mark.parametrize(
    ("topics", "dead"), [([], None), (["a b"], None), (["events"], "events"), (["a"], "b c")]
)
def test_source_needs_topics_and_another_one_for_dead_letters(
    topics: list[str], dead: str | None
) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        KafkaSource("host", topics, group="billing", dead_letters=dead)


def test_source_needs_a_group() -> None:
    with pytest.raises(ConfigurationError, match="group"):
        KafkaSource("host", "events", group="")

"""Settings in a broker's URL: read as the config has them, and never repeated by an error."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from outrider import ConfigurationError
from outrider.brokers.kafka.config import KafkaConfig, read_url
from outrider.brokers.nats import NatsConfig, NatsPublisher
from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.brokers.redis import RedisPublisher
from outrider.settings.settings import read_settings
from outrider.settings.url_parameters import with_url_settings
from tests.support.canary import CANARY


def test_every_kind_of_setting_is_read_and_what_is_none_stays() -> None:
    url = "nats://host?replicas=3&ca_file=%2Fetc%2Fca.pem&heartbeat=7.5&sink=shop&other=1"

    bare, config = with_url_settings(url, NatsConfig(prefetch=9))

    assert bare == "nats://host?other=1"
    assert (config.replicas, config.ca_file, config.sink) == (3, Path("/etc/ca.pem"), "shop")
    assert (config.heartbeat, config.prefetch) == (timedelta(seconds=7.5), 9)


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("kafka://host", "PLAINTEXT"),
        ("kafka://u:p%40ss@host,other:9093", "SASL_PLAINTEXT"),
        ("kafka://u:p%40ss@host?ca_file=x", "SASL_SSL"),
        ("kafka://host?ca_file=x", "SSL"),
        ("kafka://host?security_protocol=SSL", "SSL"),
    ],
)
def test_kafka_url_says_how_to_log_in(url: str, protocol: str) -> None:
    servers, config = read_url(url, KafkaConfig())

    assert servers[0] == "host"
    assert config.security_protocol == protocol
    assert config.sasl_plain_password == ("p@ss" if "@" in url else None)


@pytest.mark.parametrize("publisher", [RabbitMQPublisher, NatsPublisher, RedisPublisher])
def test_bad_value_is_named_and_not_repeated(publisher: type) -> None:
    scheme = publisher.__name__.removesuffix("Publisher").lower().replace("rabbitmq", "amqp")

    with pytest.raises(ConfigurationError, match="connect_timeout behind the") as caught:
        publisher(f"{scheme}://host?connect_timeout={CANARY}")

    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"kafka://shop:{CANARY}@one:9092,two:9092?sasl_mechanism=SCRAM-SHA-512",
        f"kafka://one?sasl_plain_password={CANARY}&partitions=3",
        f"nats://{CANARY}@host",
        f"tls://a:{CANARY}@one,tls://b:{CANARY}@two?ca_file=x",
        f"rediss://shop:{CANARY}@host/0?ca_file=x",
        f"amqps://shop:{CANARY}@host/?ca_file=x",
    ],
)
def test_config_shows_the_broker_without_its_password(url: str) -> None:
    shown = str([each.masked_text for each in read_settings({"to": url}, {}).found])

    assert CANARY not in shown
    assert "***" in shown


def test_misspelt_option_of_redis_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean max_length\?") as caught:
        RedisPublisher(f"redis://host/0?max_lenght={CANARY}")

    assert CANARY not in str(caught.value)


def test_unknown_parameter_of_rabbitmq_is_told_with_all_that_are_allowed() -> None:
    with pytest.raises(ConfigurationError, match=r"password may not .*: .*ca_file.*heartbeat"):
        RabbitMQPublisher("amqp://host/?password=x")


def test_login_at_each_server_of_kafka_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="write the login once") as caught:
        read_url(f"kafka://u:{CANARY}@a:1,u:{CANARY}@b:2", KafkaConfig())

    assert CANARY not in str(caught.value)

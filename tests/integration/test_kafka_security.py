"""Kafka with TLS and passwords: who is let in, and what is said about the others."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

from outrider import BrokerUnavailable, ConfigurationError
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher, KafkaSource
from outrider.testing.services import Services
from outrider.testing.services.ports import free_ports
from outrider.testing.services.servers.kafka import Kafka
from tests.support.brokers.events import event
from tests.support.brokers.kafka_topics import administering, unique
from tests.support.relay_environment import publisher_from

PASSWORD, CANARY = "sesame-30f", "canary-9d4"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecureKafka(Kafka):
    """With one more listener, which shows a certificate and asks for a password."""

    @cached_property
    def secure(self) -> str:
        return f"127.0.0.1:{free_ports(1)[0]}"

    @property
    def secure_url(self) -> str:
        return f"kafka://{self.secure}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    def _settings(self) -> list[tuple[str, object]]:
        settings = dict(super()._settings())
        for name in ("listeners", "advertised.listeners"):
            settings[name] = f"{settings[name]},SASL_SSL://{self.secure}"
        settings |= {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore(),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{LOGIN_MODULE} required user_shop="{PASSWORD}";'
            ),
        }
        return list(settings.items())

    def _keystore(self) -> Path:
        key, keystore = self.folder / "key.pem", self.folder / "keystore.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
             "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
             "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        keystore.write_text(key.read_text() + self.certificate.read_text())
        return keystore


@pytest.fixture(scope="module")
def secure(services: Services) -> Iterator[SecureKafka]:
    server = services.another(SecureKafka)
    yield server
    server.stop()


def login(trusted: Path | None, password: str = PASSWORD) -> KafkaConfig:
    return KafkaConfig(
        partitions=1,
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=trusted) if trusted else None,
        sasl_plain_username="shop",
        sasl_plain_password=password,
    )


async def test_events_travel_over_tls_with_a_password(secure: SecureKafka) -> None:
    topic, sent, config = unique(), event(), login(secure.certificate)
    source = KafkaSource(secure.secure_url, topic, group="g", config=config)

    async with KafkaPublisher(secure.secure_url, topic, config=config) as publisher:
        await publisher.publish(sent)
    await source.open()
    found = []
    while not found:
        found = list(await source.receive(10))
    await source.dead_letter(found[0], "enough")
    await source.close()

    assert [delivery.envelope for delivery in found] == [sent]


async def test_relay_needs_nothing_but_a_url_for_tls_and_a_password(secure: SecureKafka) -> None:
    topic, sent = unique(), event()
    url = f"kafka://shop:{PASSWORD}@{secure.secure}?ca_file={secure.certificate}&partitions=3"
    publisher, source = publisher_from(url, topic), KafkaSource(url, topic, group="g")

    await publisher.open()
    await publisher.publish(sent)
    await publisher.close()
    await source.open()
    found = []
    while not found:
        found = list(await source.receive(10))
    await source.close()

    assert [delivery.envelope for delivery in found] == [sent]
    assert await partitions_of(secure.url, topic) == 3
    assert PASSWORD not in f"{publisher!r} {source!r}"


async def partitions_of(url: str, topic: str) -> int:
    async with administering(url) as admin:
        [described] = await admin.describe_topics([topic])
        return len(described["partitions"])


async def test_wrong_password_is_one_clear_error_without_it(secure: SecureKafka) -> None:
    config = login(secure.certificate, CANARY)

    for adapter in (
        KafkaPublisher(secure.secure_url, config=config),
        KafkaSource(secure.secure_url, "events", group="g", config=config),
    ):
        with pytest.raises(
            ConfigurationError, match="SaslAuthenticationFailed|Authentication"
        ) as e:
            await adapter.open()
        assert CANARY not in f"{e.value!r} {e.value.__cause__!r}"


async def test_certificate_of_a_stranger_is_not_trusted(secure: SecureKafka) -> None:
    with pytest.raises(ConfigurationError, match="certificate is not trusted"):
        await KafkaPublisher(secure.secure_url, config=login(None)).open()


async def test_tls_to_a_listener_without_it_is_explained(secure: SecureKafka) -> None:
    with pytest.raises((BrokerUnavailable, ConfigurationError)) as caught:
        await KafkaPublisher(secure.url, config=login(secure.certificate)).open()

    assert PASSWORD not in repr(caught.value)
    assert "does this port speak TLS?" in str(caught.value)

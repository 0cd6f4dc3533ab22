"""The publisher's settings, and the TLS that follows from them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from outrider.brokers.rabbitmq.address import Address


@dataclass(frozen=True, kw_only=True)
class RabbitMQConfig:
    """How long to wait, how much to send, whom to trust."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """Longer rides out a slow network, shorter notices sooner that the broker is gone."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For a whole call, connecting included; what is not confirmed by then is sent again later."""
    heartbeat: timedelta | None = timedelta(seconds=30)
    """Twice this time of silence is a lost connection; the broker may ask for less."""
    max_message_size: int | None = 16 * 1024 * 1024
    """Larger events are refused alone; the broker would close the channel on its neighbours too."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""
    ca_file: Path | None = None
    """Trusted instead of the system's authorities; needs amqps://."""
    client_certificate: Path | None = None
    """Shown to the broker, with its key in the same file or in `client_key`; needs amqps://."""
    client_key: Path | None = None
    """The key of `client_certificate`, if it lies in a file of its own."""
    ssl: ssl.SSLContext | None = None
    """Instead of the three above, with whatever it verifies; needs amqps://."""

    def __post_init__(self) -> None:
        names = ("connect_timeout", "publish_timeout", "heartbeat", "max_message_size")
        problems = [
            f"{name} must be positive"
            for name in names
            if (value := getattr(self, name)) is not None and value <= type(value)()
        ]
        if self.heartbeat and not 1 <= self.heartbeat.total_seconds() <= 65_535:
            problems.append("heartbeat must be between 1 and 65535 seconds")
        if self.client_key and not self.client_certificate:
            problems.append("client_key needs client_certificate")
        if self.ssl and (self.ca_file or self.client_certificate):
            problems.append("ssl excludes ca_file and client_certificate")
        if problems:
            raise ConfigurationError(f"RabbitMQConfig: {'; '.join(problems)}")


def tls_context(address: Address, config: RabbitMQConfig) -> ssl.SSLContext | None:
    """Verifies the broker's certificate and name, unless a context of the user's own does not."""
    if not address.tls:
        if config.ssl or config.ca_file or config.client_certificate:
            raise ConfigurationError(f"RabbitMQConfig: TLS settings need amqps://, not {address}")
        return None
    if config.ssl is not None:
        return config.ssl
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
        if config.client_certificate:
            context.load_cert_chain(config.client_certificate, config.client_key)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigurationError(f"RabbitMQConfig: ca_file or certificate: {why}") from error
    return context

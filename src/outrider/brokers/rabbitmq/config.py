"""The settings of both sides, and the TLS that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from outrider.errors import ConfigurationError
from outrider.settings.tls import tls_context as make_tls_context
from outrider.settings.url_parameters import with_url_settings

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from outrider.brokers.rabbitmq.address import Address

    Config = TypeVar("Config", bound="ConnectionConfig")


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """How long to wait, whom to trust."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """Longer rides out a slow network, shorter notices sooner that the broker is gone."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For a whole call, connecting included; what is not confirmed by then is sent again later."""
    heartbeat: timedelta | None = timedelta(seconds=30)
    """Twice this time of silence is a lost connection; the broker may ask for less."""
    ca_file: Path | None = None
    """Trusted instead of the system's authorities; needs amqps://."""
    client_certificate: Path | None = None
    """Shown to the broker, with its key in the same file or in `client_key`; needs amqps://."""
    client_key: Path | None = None
    """The key of `client_certificate`, if it lies in a file of its own."""
    ssl_context: ssl.SSLContext | None = None
    """Instead of the three above, with whatever it verifies; needs amqps://."""

    def __post_init__(self) -> None:
        if problems := self._problems():
            raise ConfigurationError(f"{type(self).__name__}: {'; '.join(problems)}")

    def _problems(self) -> list[str]:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        problems = [
            f"{name} must be positive"
            for name, value in given.items()
            if type(value) in (int, timedelta) and value <= type(value)()
        ]
        if self.heartbeat and not 1 <= self.heartbeat.total_seconds() <= 65_535:
            problems.append("heartbeat must be between 1 and 65535 seconds")
        if self.client_key and not self.client_certificate:
            problems.append("client_key needs client_certificate")
        if self.ssl_context and (self.ca_file or self.client_certificate):
            problems.append("ssl_context excludes ca_file and client_certificate")
        return problems


@dataclass(frozen=True, kw_only=True)
class RabbitMQConfig(ConnectionConfig):
    """How a publisher works."""

    max_message_size: int | None = 16 * 1024 * 1024
    """Larger events are refused alone; the broker would close the channel on its neighbours too."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""


@dataclass(frozen=True, kw_only=True)
class RabbitMQSourceConfig(ConnectionConfig):
    """How a source works."""

    prefetch: int = 256
    """Most messages that the broker hands out ahead of their acknowledgement; more hides a slow
    network. Have the same in all processes: a quorum queue keeps no order if one with less takes
    over and dies."""
    dead_letter_exchange: str | None = None
    """Where `dead_letter` publishes to, with the routing key kept; None takes the queue's own, or
    else a queue called `<queue>.dlq`."""

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if self.prefetch > 65_535:
            problems.append("prefetch must be at most 65535")
        if self.dead_letter_exchange == "":
            problems.append("dead_letter_exchange needs a name")
        return problems


def read_url(url: str, config: Config) -> tuple[str, Config]:
    """The address, and the settings behind its ?; the heartbeat there has a meaning of its own."""
    return with_url_settings(url, config, leave=("heartbeat",))


def tls_context(address: Address, config: ConnectionConfig) -> ssl.SSLContext | None:
    """Verifies the broker's certificate and name, unless a context of the user's own does not."""
    if not address.tls:
        if config.ssl_context or config.ca_file or config.client_certificate:
            name = type(config).__name__
            raise ConfigurationError(f"{name}: TLS settings need amqps://, not {address}")
        return None
    return make_tls_context(config)

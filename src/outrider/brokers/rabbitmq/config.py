"""The settings of RabbitMQPublisher and RabbitMQSource, and the address that a URL names."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from outrider.errors import ConfigurationError
from outrider.settings.tls import has_tls_settings, tls_problems
from outrider.settings.tls import tls_context as make_tls_context
from outrider.settings.url_parameters import allowed_parameters, with_url_settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_MAX_HEARTBEAT_S: Final = 65_535
_MAX_PREFETCH: Final = 65_535
_MAX_VHOST_LENGTH: Final = 127
_POSITIVE: Final = (
    *("connect_timeout", "publish_timeout", "heartbeat"),
    *("max_message_size", "prefetch"),
)


@dataclass(frozen=True, kw_only=True)
class RabbitMQConfig:
    """Timeouts, sizes and TLS."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """A longer time tolerates a slow network; a shorter one notices sooner that the broker is
    down."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For one whole publish call, connecting included. Events that are not acknowledged by then
    are published again later."""
    heartbeat: timedelta | None = timedelta(seconds=30)
    """A connection that is silent for twice this time is lost. Shorter notices that sooner, and
    sends more. The broker may ask for less; None switches heartbeats off."""
    max_message_size: int | None = 16 * 1024 * 1024
    """Bytes. A larger event is refused without being sent; the broker would close the channel, and
    with it fail the other events of the call. None sets no limit."""
    mandatory: bool = True
    """An event that no queue takes waits until one does. False lets the broker drop it: for
    exchanges where not every event has a reader."""
    prefetch: int = 256
    """How many messages a source receives ahead of their acknowledgement. More is faster over a
    slow network, and needs memory. Use the same number in all processes: if a process with a
    smaller one takes over a quorum queue and dies too, the broker breaks the order."""
    cloudevents_source: str = "outrider"
    """The CloudEvents attribute `source`: the system that the events come from."""
    ca_file: Path | None = None
    """Certificate authorities to trust instead of those of the system."""
    client_certificate: Path | None = None
    """Presented to the broker; its key is in the same file or in `client_key`."""
    client_key: Path | None = None
    """The key of `client_certificate`, if it is in a file of its own."""
    ssl_context: ssl.SSLContext | None = None
    """Replaces the three settings above, and decides itself what it verifies."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be positive"
            for name in _POSITIVE
            if (value := getattr(self, name)) is not None and value <= type(value)()
        ]
        if self.heartbeat and not 1 <= self.heartbeat.total_seconds() <= _MAX_HEARTBEAT_S:
            problems.append(f"heartbeat must be between 1 and {_MAX_HEARTBEAT_S} seconds")
        if self.prefetch > _MAX_PREFETCH:
            problems.append(f"prefetch must be at most {_MAX_PREFETCH}")
        problems += tls_problems(self)
        if problems:
            raise ConfigurationError(f"RabbitMQConfig: {'; '.join(problems)}")


@dataclass(frozen=True, kw_only=True)
class Address:
    """`amqp://user:password@host:port/vhost?heartbeat=30`, percent-decoded; prints no secrets."""

    host: str
    port: int
    vhost: str
    tls: bool
    user: str = field(repr=False)
    password: str = field(repr=False)
    heartbeat: int | None = None
    """Seconds; None leaves it to the config, 0 switches it off."""

    def __str__(self) -> str:
        scheme = "amqps" if self.tls else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{quote(self.vhost, safe='')}"


def read_url(url: str, config: RabbitMQConfig | None) -> tuple[Address, RabbitMQConfig]:
    """The address, and the config with the settings behind the ? of the URL."""
    # Unlike the field, the heartbeat of a URL may be 0, which switches it off.
    bare, config = with_url_settings(url, config or RabbitMQConfig(), leave=("heartbeat",))
    return parse_url(bare), config


def tls_context(address: Address, config: RabbitMQConfig) -> ssl.SSLContext | None:
    """None without TLS; raises ConfigurationError if settings and URL contradict each other."""
    if address.tls:
        return make_tls_context(config)
    if has_tls_settings(config):
        raise ConfigurationError(f"RabbitMQConfig: TLS settings need amqps://, not {address}")
    return None


def parse_url(url: str) -> Address:
    """No error repeats any part of the URL: what is misplaced in it is often the password."""
    parts = _split(url)
    query = _query(parts)
    return Address(
        host=unquote(parts.hostname or "localhost"),
        port=_port(parts),
        # "amqp://host" and "amqp://host/" both mean the vhost that every broker has.
        vhost=unquote(parts.path[1:]) or "/",
        tls=parts.scheme == "amqps",
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        heartbeat=_heartbeat(query),
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("it is no URL") from None
    if parts.scheme not in _PORTS:
        raise _bad("it must begin with amqp:// or amqps://")
    after_host = parts.path[1:] + parts.query
    if parts.fragment or "#" in url or "/" in after_host or "@" in after_host:
        raise _bad("/ ? # @ in user, password or vhost must be percent-encoded")
    if len(unquote(parts.path[1:])) > _MAX_VHOST_LENGTH:
        raise _bad(f"the vhost has more than {_MAX_VHOST_LENGTH} characters")
    if "," in parts.netloc.rpartition("@")[2]:
        raise _bad("it must name one host")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise _bad("the port is no number up to 65535") from None


def _query(parts: SplitResult) -> Mapping[str, str]:
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := set(query) - {"heartbeat"}:
        names = ", ".join(sorted(unknown))
        allowed = ", ".join(sorted({"heartbeat", *allowed_parameters(RabbitMQConfig)}))
        raise _bad(f"{names} may not stand behind the ?; these may: {allowed}")
    return query


def _heartbeat(query: Mapping[str, str]) -> int | None:
    text = query.get("heartbeat")
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _MAX_HEARTBEAT_S:
        raise _bad("heartbeat must be a number of seconds")
    return int(text)


def _bad(why: str) -> ConfigurationError:
    return ConfigurationError(f"bad RabbitMQ URL: {why}")

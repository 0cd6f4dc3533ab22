"""The settings of KafkaPublisher and KafkaSource, and the servers that a URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

from outrider.errors import ConfigurationError
from outrider.settings.tls import has_tls_settings, tls_context, tls_problems
from outrider.settings.url_parameters import split_settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

_SERVER: Final = re.compile(r"(\[[\da-fA-F:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?", re.ASCII)
_MAX_PORT: Final = 65_535
_POSITIVE: Final = (
    *("connect_timeout", "publish_timeout", "takeover_after"),
    *("max_message_size", "batch_bytes", "partitions", "replicas"),
)
_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS: Final = (*_PASSWORD_MECHANISMS, "GSSAPI", "OAUTHBEARER")
_CLIENT_SETTINGS: Final = (
    *("security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username"),
    *("sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
    "sasl_oauth_token_provider",
)


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """Timeouts, sizes, topics to create, login and TLS."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """A longer time tolerates a slow network; a shorter one notices sooner that the broker is
    down."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For one whole publish call, connecting included. Events that are not acknowledged by then
    are published again later."""
    takeover_after: timedelta = timedelta(seconds=10)
    """How long a source that died or hangs keeps its group. Shorter lets another source take over
    sooner, but also takes over from a source that was only slow. A source keeps only its own
    partitions of the group."""
    commit_interval: timedelta = timedelta(milliseconds=100)
    """How long acknowledged events may stay uncommitted; after a crash these are delivered again.
    With zero, `acknowledge` commits each event before it returns."""
    max_message_size: int = 1_048_576
    """Bytes, headers included. A larger event is refused without being sent; the topic must allow
    this size."""
    batch_bytes: int = 524_288
    """Most bytes in one record batch. Larger batches are faster. Must not exceed the topic's
    `max.message.bytes`, which Kafka applies to the whole batch."""
    partitions: int | None = None
    """A missing topic is created with this number of partitions; with None it is an error. More
    partitions let more sources share the work; raising the number later moves keys to other
    partitions, which breaks the order at that moment."""
    replicas: int | None = None
    """How many brokers keep a topic that is created here; three survive the loss of one. None
    means three, or as many as there are brokers."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The protocol of the broker's listener."""
    sasl_mechanism: str = "PLAIN"
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER."""
    sasl_plain_username: str | None = field(default=None, repr=False)
    """For PLAIN and SCRAM."""
    sasl_plain_password: str | None = field(default=None, repr=False)
    """For PLAIN and SCRAM; never printed."""
    sasl_kerberos_service_name: str = "kafka"
    """For GSSAPI."""
    sasl_kerberos_domain_name: str | None = None
    """For GSSAPI."""
    sasl_oauth_token_provider: Any = field(default=None, repr=False)
    """For OAUTHBEARER: an instance of aiokafka's AbstractTokenProvider."""
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
        if self.commit_interval < timedelta(0):
            problems.append("commit_interval must not be negative")
        if self.security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            problems.append("security_protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
        if has_tls_settings(self) and not self.uses_tls:
            problems.append("ssl_context and certificates need security_protocol SSL or SASL_SSL")
        problems += tls_problems(self)
        problems += self._login_problems()
        if problems:
            raise ConfigurationError(f"KafkaConfig: {'; '.join(problems)}")

    def _login_problems(self) -> Iterator[str]:
        has_password = bool(self.sasl_plain_username and self.sasl_plain_password)
        if not self.security_protocol.startswith("SASL"):
            if self.sasl_plain_username or self.sasl_plain_password:
                yield "a password needs security_protocol SASL_PLAINTEXT or SASL_SSL"
        elif self.sasl_mechanism not in _MECHANISMS:
            yield f"sasl_mechanism must be one of {', '.join(_MECHANISMS)}"
        elif self.sasl_mechanism in _PASSWORD_MECHANISMS and not has_password:
            yield f"{self.sasl_mechanism} needs sasl_plain_username and sasl_plain_password"
        elif self.sasl_mechanism == "OAUTHBEARER" and self.sasl_oauth_token_provider is None:
            yield "OAUTHBEARER needs sasl_oauth_token_provider"

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    def client_settings(self) -> dict[str, Any]:
        """The arguments about login and TLS, which all clients of aiokafka share."""
        settings = {name: getattr(self, name) for name in _CLIENT_SETTINGS}
        if self.uses_tls:
            settings["ssl_context"] = tls_context(self)
        return settings


def read_url(url: str, config: KafkaConfig) -> tuple[list[str], KafkaConfig]:
    """`kafka://user:password@host:9092,other:9092?ca_file=…`, with or without the scheme.

    A login selects SASL and a certificate selects TLS, unless `security_protocol` is given. No
    error repeats any part of the URL: a misplaced part is often a password.
    """
    bare, found = split_settings(url, config)
    login, at, servers = bare.removeprefix("kafka://").rpartition("@")
    if "@" in login:
        raise ConfigurationError(
            "bad Kafka URL: write the login once, before the first host, for all hosts: "
            "kafka://user:password@host:9092,other:9092; an @ inside it is %40"
        )
    if at:
        user, _, password = login.partition(":")
        found["sasl_plain_username"] = unquote(user)
        found["sasl_plain_password"] = unquote(password)
    if config.security_protocol == "PLAINTEXT" and "security_protocol" not in found:
        found["security_protocol"] = ("SASL_" if at else "") + (
            "SSL" if {"ca_file", "client_certificate"} & set(found) else "PLAINTEXT"
        )
    return _parse_servers(servers), replace(config, **found)


def _parse_servers(text: str) -> list[str]:
    servers = text.removesuffix("/").split(",")
    for server in servers:
        found = _SERVER.fullmatch(server)
        if not found or not 0 < int(found["port"] or 1) <= _MAX_PORT:
            raise ConfigurationError(
                "bad Kafka URL: write kafka://user:password@host:9092,other:9092, user and "
                "password percent-encoded; fields of KafkaConfig may follow a ?"
            )
    return servers

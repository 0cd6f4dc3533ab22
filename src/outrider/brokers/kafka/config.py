"""The settings of publisher and source, and the servers that a URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

from outrider.errors import ConfigurationError
from outrider.settings.tls import tls_context
from outrider.settings.url_parameters import split_settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

_SERVER: Final = re.compile(r"(\[[\da-fA-F:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?", re.ASCII)
_MAX_PORT: Final = 65_535
_POSITIVE: Final = (
    *("connect_timeout", "publish_timeout", "session_timeout"),
    *("max_message_size", "batch_bytes", "partitions", "replication"),
)
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS: Final = (*_WITH_PASSWORD, "GSSAPI", "OAUTHBEARER")
_CLIENT: Final = (
    *("security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username"),
    *("sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
    "sasl_oauth_token_provider",
)


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """How long to wait, how much to send, whom to trust."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """Longer rides out a slow network, shorter notices sooner that the cluster is gone."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For a whole call, connecting included; what is not acknowledged by then is sent again."""
    max_message_size: int = 1_048_576
    """Larger events are refused alone, headers counted; the topic must allow as much."""
    batch_bytes: int = 524_288
    """Most bytes for one partition at once: more is faster, and must not exceed what the topic
    allows for a message, which Kafka applies to the whole of it."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""
    partitions: int | None = None
    """Missing topics are created with so many; None makes them an error. More let more consumers
    share the work; raising the number later breaks the order at that moment."""
    replication: int | None = None
    """Replicas of topics that are created; None makes three, or as many as there are brokers."""
    session_timeout: timedelta = timedelta(seconds=10)
    """How long a source that died keeps its partitions; shorter takes over sooner, and more often
    from one that was only slow."""
    commit_interval: timedelta = timedelta(milliseconds=100)
    """How long acknowledged events may stay uncommitted, which a crash repeats; with zero each is
    committed before `acknowledge` returns."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """What the listener speaks."""
    ca_file: Path | None = None
    """Trusted instead of the system's authorities."""
    client_certificate: Path | None = None
    """Shown to the broker, with its key in the same file or in `client_key`."""
    client_key: Path | None = None
    """The key of `client_certificate`, if it lies in a file of its own."""
    ssl_context: ssl.SSLContext | None = None
    """Instead of the three above, with whatever it verifies."""
    sasl_mechanism: str = "PLAIN"
    """Or SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER."""
    sasl_plain_username: str | None = field(default=None, repr=False)
    """For PLAIN and SCRAM."""
    sasl_plain_password: str | None = field(default=None, repr=False)
    """For PLAIN and SCRAM; never printed."""
    sasl_kerberos_service_name: str = "kafka"
    """For GSSAPI."""
    sasl_kerberos_domain_name: str | None = None
    """For GSSAPI."""
    sasl_oauth_token_provider: Any = field(default=None, repr=False)
    """For OAUTHBEARER: aiokafka's AbstractTokenProvider."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be positive"
            for name in _POSITIVE
            if (value := getattr(self, name)) is not None and value <= type(value)()
        ]
        if self.security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            problems.append("security_protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
        files = self.ca_file or self.client_certificate
        if (self.ssl_context or files) and not self.uses_tls:
            problems.append("ssl_context and certificates need security_protocol SSL or SASL_SSL")
        if self.ssl_context and files:
            problems.append("ssl_context excludes ca_file and client_certificate")
        if self.client_key and not self.client_certificate:
            problems.append("client_key needs client_certificate")
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
        elif self.sasl_mechanism in _WITH_PASSWORD and not has_password:
            yield f"{self.sasl_mechanism} needs sasl_plain_username and sasl_plain_password"
        elif self.sasl_mechanism == "OAUTHBEARER" and self.sasl_oauth_token_provider is None:
            yield "OAUTHBEARER needs sasl_oauth_token_provider"

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    def for_client(self) -> dict[str, Any]:
        """What all of aiokafka's clients are told."""
        settings = {name: getattr(self, name) for name in _CLIENT}
        if self.uses_tls and self.ssl_context is None:
            settings["ssl_context"] = tls_context(self)
        return settings


def read_url(url: str, config: KafkaConfig) -> tuple[list[str], KafkaConfig]:
    """`kafka://user:password@host:9092,other:9092?ca_file=…`, with or without the scheme.

    A login makes it SASL and a certificate TLS, unless the protocol is given too. No error
    repeats any part of the URL: what is misplaced in it is often a password.
    """
    bare, found = split_settings(url, config)
    login, at, servers = bare.removeprefix("kafka://").rpartition("@")
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
                "password percent-encoded; behind a ? may stand what KafkaConfig has"
            )
    return servers

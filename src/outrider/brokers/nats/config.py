"""The settings of NatsPublisher and NatsSource, the servers of a URL, and rules for names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from outrider.errors import ConfigurationError
from outrider.settings.tls import has_tls_settings, tls_problems
from outrider.settings.tls import tls_context as make_tls_context
from outrider.settings.url_parameters import with_url_settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

_DEFAULT_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
# Control characters break the protocol; surrogates are no valid Unicode text.
_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")
_WORD: Final = r"[^\s.*>\x00-\x1f\x7f\ud800-\udfff]+"
_SUBJECT: Final = re.compile(rf"{_WORD}(\.{_WORD})*")
_WILDCARD: Final = re.compile(r"(^|(?<=\.))(\*(?=\.|$)|>$)")
_POSITIVE: Final = (
    *("connect_timeout", "publish_timeout", "request_timeout", "heartbeat", "takeover_after"),
    *("ack_wait", "max_message_size", "prefetch", "replicas", "duplicate_window"),
)


@dataclass(frozen=True, kw_only=True)
class NatsConfig:
    """Timeouts, sizes, streams to create, login and TLS."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """A longer time tolerates a slow network; a shorter one notices sooner that the broker is
    down. Applies to each server of the list."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For one whole publish call, connecting included. Events that are not acknowledged by then
    are published again later."""
    request_timeout: timedelta = timedelta(seconds=5)
    """For one request to JetStream. Allow a few seconds, which an election in a cluster takes."""
    heartbeat: timedelta = timedelta(seconds=20)
    """A connection that is silent for twice this time is lost. Shorter notices that sooner, and
    sends more."""
    takeover_after: timedelta = timedelta(seconds=10)
    """How long a source that died or hangs keeps its group. Shorter lets another source take over
    sooner, but also takes over from a source that was only slow. When its process dies, the server
    usually notices at once, and so does the next source."""
    ack_wait: timedelta = timedelta(seconds=30)
    """When the server delivers a message again that was neither acknowledged nor reported as in
    progress. A source reports in time, unless it hangs."""
    max_message_size: int | None = None
    """Bytes, headers included. A larger event is refused without being sent. None means the limit
    of the server and of the stream, which apply in any case."""
    prefetch: int = 256
    """How many messages a source receives ahead of their acknowledgement. More is faster over a
    slow network, and needs memory. Sources that are not ordered receive none ahead."""
    replicas: int = 1
    """How many servers keep a stream that is created here; three survive the loss of one."""
    duplicate_window: timedelta = timedelta(minutes=2)
    """How long a stream that is created here recognises a repeated event. Longer needs memory."""
    sink: str = "nats"
    """Part of the message id. Two publishers that send the same events into one stream need
    different sinks, else the stream takes the second copy for a repetition."""
    credentials: Path | None = None
    """A .creds file with the JWT and the key of a user; needs the package nkeys."""
    nkey_seed: Path | None = None
    """A file with the seed of an nkey; needs the package nkeys."""
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
        if not self.sink.isascii() or not self.sink.isprintable() or " " in self.sink:
            problems.append("sink must be printable ASCII without spaces")
        if self.credentials and self.nkey_seed:
            problems.append("credentials excludes nkey_seed")
        if (self.credentials or self.nkey_seed) and find_spec("nkeys") is None:
            problems.append("credentials and nkey_seed need nkeys: pip install nkeys")
        problems += tls_problems(self)
        if problems:
            raise ConfigurationError(f"NatsConfig: {'; '.join(problems)}")


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of a URL; printing it shows no secrets."""

    host: str
    port: int
    tls: bool
    login: dict[str, str] = field(repr=False)
    """Arguments of nats-py: user and password, or token."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


def read_url(
    url: str | Sequence[str], config: NatsConfig | None
) -> tuple[tuple[Server, ...], NatsConfig]:
    """The servers, and the config with the settings behind the ? of the URL.

    `nats://user:password@host:4222`, or several of them, separated by commas or as a list. No
    error repeats any part of a URL: a misplaced part is often the password.
    """
    config = config or NatsConfig()
    if isinstance(url, str):
        url, config = with_url_settings(url, config)
    return _parse_servers(url), config


def _parse_servers(url: str | Sequence[str]) -> tuple[Server, ...]:
    texts = url.split(",") if isinstance(url, str) else url
    servers = tuple(_parse_server(text.strip()) for text in texts)
    if not servers:
        raise _bad_url("there is none")
    return servers


def _parse_server(text: str) -> Server:
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        raise _bad_url("it is none, or its port is no number up to 65535") from None
    if parts.scheme not in _SCHEMES:
        raise _bad_url("it must begin with nats:// or tls://")
    if parts.path.strip("/") or parts.query or parts.fragment or "#" in text or "?" in text:
        raise _bad_url(
            "/ ? # , in user or password must be percent-encoded; see NatsConfig for more"
        )
    if not parts.hostname:
        raise _bad_url("it names no host")
    return Server(host=parts.hostname, port=port, tls=parts.scheme == "tls", login=_login(parts))


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    if parts.password is None:
        return {"token": unquote(parts.username)}
    return {"user": unquote(parts.username), "password": unquote(parts.password)}


def tls_context(servers: Sequence[Server], config: NatsConfig) -> ssl.SSLContext | None:
    """None without TLS; raises ConfigurationError if settings and URL contradict each other."""
    if not any(server.tls for server in servers):
        if has_tls_settings(config):
            raise ConfigurationError("NatsConfig: TLS settings need tls://")
        return None
    return make_tls_context(config)


def check_names(
    names: dict[str, str], subjects: dict[str, str], patterns: Sequence[str] = ()
) -> None:
    """`names` are streams and groups; `subjects` have no wildcards; `patterns` may have some."""
    problems = [
        f"{what} must be a name without spaces and . * > / \\"
        for what, name in names.items()
        if not _NAME.fullmatch(name)
    ]
    problems += [
        f"{what} must be words with dots between, without spaces and * >"
        for what, subject in subjects.items()
        if not is_subject(subject)
    ]
    problems += [
        f"subjects[{number}] must be words, * and a last > with dots between"
        for number, pattern in enumerate(patterns)
        if not is_subject(_WILDCARD.sub("x", pattern))
    ]
    if problems:
        raise ConfigurationError(f"NATS: {'; '.join(problems)}")


def is_subject(text: str) -> bool:
    """Whether a message can be published to it."""
    return _SUBJECT.fullmatch(text) is not None


def covers(pattern: str, subject: str) -> bool:
    """Whether a stream with this pattern stores every message of the subject."""
    words = subject.split(".")
    for number, word in enumerate(pattern.split(".")):
        if number >= len(words):
            return False
        if word == ">":
            return True
        if words[number] == ">" or word not in ("*", words[number]):
            return False
    return len(pattern.split(".")) == len(words)


def _bad_url(why: str) -> ConfigurationError:
    return ConfigurationError(f"bad NATS URL: {why}")

"""The settings of publisher and source, and the servers that a URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from outrider.errors import ConfigurationError
from outrider.settings.tls import tls_context as make_tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")
_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")
_WILDCARD: Final = re.compile(r"(^|(?<=\.))(\*(?=\.|$)|>$)")
_POSITIVE: Final = (
    *("connect_timeout", "publish_timeout", "request_timeout", "heartbeat"),
    *("replicas", "duplicate_window", "prefetch", "ack_wait", "takeover_after"),
)


@dataclass(frozen=True, kw_only=True)
class NatsConfig:
    """How long to wait, what to create, whom to trust."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """For each server; longer rides out a slow network, shorter tries the next one sooner."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For a whole call, connecting included; what is not stored by then is sent again later."""
    request_timeout: timedelta = timedelta(seconds=5)
    """For one question to JetStream; an election in a cluster takes a few seconds."""
    heartbeat: timedelta = timedelta(seconds=20)
    """Twice this time of silence is a lost connection; shorter notices sooner, and pings more."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""
    sink: str = "nats"
    """Part of the message id: two publishers that send the same events into one stream need
    different ones, or the stream takes the second copy for a repetition."""
    replicas: int = 1
    """How many servers keep a stream that is created here; three survive the loss of one."""
    duplicate_window: timedelta = timedelta(minutes=2)
    """For how long a stream that is created here recognises repetitions; longer needs memory."""
    prefetch: int = 256
    """How many messages an ordered source fetches ahead; more is faster, and needs memory."""
    ack_wait: timedelta = timedelta(seconds=30)
    """When the server takes back a message from a source that shows no sign of life."""
    takeover_after: timedelta = timedelta(seconds=10)
    """How long a source that hangs keeps its group; of one that died the server knows at once."""
    credentials: Path | None = None
    """A .creds file with a user's JWT and key; needs the nkeys package."""
    nkey_seed: Path | None = None
    """A file with the seed of an nkey; needs the nkeys package."""
    ca_file: Path | None = None
    """Trusted instead of the system's authorities; needs tls://."""
    client_certificate: Path | None = None
    """Shown to the server, with its key in the same file or in `client_key`; needs tls://."""
    client_key: Path | None = None
    """The key of `client_certificate`, if it lies in a file of its own."""
    ssl_context: ssl.SSLContext | None = None
    """Instead of the three above, with whatever it verifies; needs tls://."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be positive"
            for name in _POSITIVE
            if (value := getattr(self, name)) <= type(value)()
        ]
        if not self.sink.isascii() or not self.sink.isprintable() or " " in self.sink:
            problems.append("sink must be printable ASCII without spaces")
        if self.credentials and self.nkey_seed:
            problems.append("credentials excludes nkey_seed")
        if (self.credentials or self.nkey_seed) and find_spec("nkeys") is None:
            problems.append("credentials and nkey_seed need nkeys: pip install nkeys")
        if self.client_key and not self.client_certificate:
            problems.append("client_key needs client_certificate")
        if self.ssl_context and (self.ca_file or self.client_certificate):
            problems.append("ssl_context excludes ca_file and client_certificate")
        if problems:
            raise ConfigurationError(f"NatsConfig: {'; '.join(problems)}")


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of a URL; printing it shows no secrets."""

    host: str
    port: int
    tls: bool
    login: dict[str, str] = field(repr=False)
    """As nats-py wants it: user and password, or token."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


def parse_url(url: str | Sequence[str]) -> tuple[Server, ...]:
    """`nats://user:password@host:4222`, several of them with commas between or in a list.

    No error repeats any part of a URL: what is misplaced in it is often the password.
    """
    texts = url.split(",") if isinstance(url, str) else url
    servers = tuple(_server(text.strip()) for text in texts)
    if not servers:
        raise _bad("there is none")
    return servers


def _server(text: str) -> Server:
    try:
        parts = urlsplit(text)
        port = parts.port or _PORT
    except ValueError:
        raise _bad("it is none, or its port is no number up to 65535") from None
    if parts.scheme not in _SCHEMES:
        raise _bad("it must begin with nats:// or tls://")
    if parts.path.strip("/") or parts.query or parts.fragment or "#" in text or "?" in text:
        raise _bad("/ ? # , in user or password must be percent-encoded; see NatsConfig for more")
    if not parts.hostname:
        raise _bad("it names no host")
    return Server(host=parts.hostname, port=port, tls=parts.scheme == "tls", login=_login(parts))


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    if parts.password is None:
        return {"token": unquote(parts.username)}
    return {"user": unquote(parts.username), "password": unquote(parts.password)}


def tls_context(servers: Sequence[Server], config: NatsConfig) -> ssl.SSLContext | None:
    """Verifies the server's certificate and name, unless a context of the user's own does not."""
    if not any(server.tls for server in servers):
        if config.ssl_context or config.ca_file or config.client_certificate:
            raise ConfigurationError("NatsConfig: TLS settings need tls://")
        return None
    return make_tls_context(config)


def check_names(
    names: dict[str, str], subjects: dict[str, str], patterns: Sequence[str] = ()
) -> None:
    """Streams and groups, subjects without wildcards, and subjects that may have some."""
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
    """Whether a stream that takes the pattern takes every message of the subject."""
    wanted = subject.split(".")
    for number, word in enumerate(pattern.split(".")):
        if number >= len(wanted):
            return False
        if word == ">":
            return True
        if wanted[number] == ">" or word not in ("*", wanted[number]):
            return False
    return len(pattern.split(".")) == len(wanted)


def _bad(why: str) -> ConfigurationError:
    return ConfigurationError(f"bad NATS URL: {why}")

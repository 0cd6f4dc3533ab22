"""The settings of a publisher and a source, and the connection that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from redis.asyncio import Connection
from redis.asyncio.connection import parse_url

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST: Final = 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RedisConfig:
    """How long to wait, how much to send and to keep, whom to trust."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """Longer rides out a slow network, shorter notices sooner that the server is gone."""
    call_timeout: timedelta = timedelta(seconds=10)
    """For a whole call, connecting included; what is not answered by then is repeated later."""
    max_message_size: int = 16 * 1024 * 1024
    """Larger events are refused alone; above the server's `proto-max-bulk-len` it would hang up."""
    max_length: int | None = None
    """About how many entries a stream keeps; older ones are deleted, read or not."""
    max_age: timedelta | None = None
    """About how long a stream keeps entries, by the server's clock; read or not."""
    source: str = "outrider"
    """The CloudEvents attribute that says which system the events come from."""
    lease: timedelta = timedelta(seconds=10)
    """After how much silence others take over from a source; shorter takes a pause for a death."""
    ca_file: Path | None = None
    """Trusted instead of the system's authorities; needs rediss://."""
    client_certificate: Path | None = None
    """Shown to the server, with its key in the same file or in `client_key`; needs rediss://."""
    client_key: Path | None = None
    """The key of `client_certificate`, if it lies in a file of its own."""

    def __post_init__(self) -> None:
        names = "connect_timeout", "call_timeout", "max_message_size", "max_length", "max_age"
        problems = [
            f"{name} must be positive"
            for name in names
            if (value := getattr(self, name)) is not None and value <= type(value)()
        ]
        if self.max_message_size > _LARGEST:
            problems.append("max_message_size must be at most 512 MiB, as a string of Redis")
        if self.max_length is not None and self.max_age is not None:
            problems.append("max_length excludes max_age")
        if self.lease < timedelta(seconds=1):
            problems.append("lease must be at least a second")
        if self.client_key and not self.client_certificate:
            problems.append("client_key needs client_certificate")
        if problems:
            raise ConfigurationError(f"RedisConfig: {'; '.join(problems)}")

    @property
    def tls(self) -> dict[str, Any]:
        files = {
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.client_certificate,
            "ssl_keyfile": self.client_key,
        }
        return {name: str(path) for name, path in files.items() if path is not None}


class Address:
    """`redis://user:password@host:port/db`, or rediss:// or unix://; printed without secrets."""

    def __init__(self, url: str, config: RedisConfig) -> None:
        """No error repeats any part of the URL: what is misplaced in it is often the password."""
        parts = _split(url)
        try:
            found: dict[str, Any] = dict(parse_url(url))
        except ValueError:
            raise _bad("its port or an option behind the ? is not valid") from None
        self._kind = found.pop("connection_class", Connection)
        self._settings = found | {
            "socket_timeout": None,  # every call has a deadline of its own
            "socket_connect_timeout": config.connect_timeout.total_seconds(),
            "protocol": 2,
            "decode_responses": False,
        }
        if parts.scheme == "rediss":
            self._settings = {"ssl_check_hostname": True} | self._settings | config.tls
        elif config.tls:
            raise ConfigurationError(
                f"RedisConfig: TLS settings need rediss://, not {parts.scheme}"
            )
        self._shown = _shown(parts, found)
        self._try()

    def __str__(self) -> str:
        return self._shown

    def connection(self) -> Connection:
        """A new one, not connected yet."""
        made: Connection = self._kind(**self._settings)
        return made

    def _try(self) -> None:
        """Find out now what could never connect."""
        try:
            tls = getattr(self.connection(), "ssl_context", None)
        except Exception:  # noqa: BLE001 - whatever the client says may quote the URL
            raise _bad("the client does not know an option behind the ?") from None
        try:
            if tls is not None:
                tls.get()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ConfigurationError(f"RedisConfig: ca_file or certificate: {why}") from error


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("it is no URL") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _bad("it must begin with redis://, rediss:// or unix://")
    if "#" in url or "@" in parts.path + parts.query:
        raise _bad("/ ? # @ in user and password must be percent-encoded")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise _bad("the path must be the number of a database")
    return parts


def _shown(parts: SplitResult, found: dict[str, Any]) -> str:
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = found.get("host", "localhost")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{found.get('port', 6379)}/{found.get('db', 0)}"


def _bad(why: str) -> ConfigurationError:
    return ConfigurationError(f"bad Redis URL: {why}")

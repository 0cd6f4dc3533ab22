"""The settings of RedisPublisher and RedisSource, and the connection that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.connection import parse_url

from outrider.errors import ConfigurationError
from outrider.settings.tls import has_tls_settings, tls_context, tls_problems
from outrider.settings.url_parameters import allowed_parameters

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

_MAX_STRING_BYTES: Final = 512 * 1024 * 1024
_MIN_TAKEOVER: Final = timedelta(seconds=1)
_POSITIVE: Final = (
    *("connect_timeout", "publish_timeout"),
    *("max_message_size", "max_length", "max_age"),
)


@dataclass(frozen=True, kw_only=True)
class RedisConfig:
    """Timeouts, sizes, trimming and TLS."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """A longer time tolerates a slow network; a shorter one notices sooner that the broker is
    down."""
    publish_timeout: timedelta = timedelta(seconds=10)
    """For one whole publish call, connecting included. Events that are not acknowledged by then
    are published again later. The calls of a source have the same limit."""
    takeover_after: timedelta = timedelta(seconds=10)
    """How long a source that died or hangs keeps its group. Shorter lets another source take over
    sooner, but also takes over from a source that was only slow."""
    max_message_size: int = 16 * 1024 * 1024
    """Bytes. A larger event is refused without being sent; above its `proto-max-bulk-len` the
    server would close the connection, and with it fail the other events of the call."""
    max_length: int | None = None
    """About how many entries a stream keeps. Older entries are deleted, whether they were read or
    not."""
    max_age: timedelta | None = None
    """About how long a stream keeps entries, by the server's clock. Older entries are deleted,
    whether they were read or not."""
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
        if self.max_message_size > _MAX_STRING_BYTES:
            problems.append("max_message_size must be at most 512 MiB, as a string of Redis")
        if self.max_length is not None and self.max_age is not None:
            problems.append("max_length excludes max_age")
        if self.takeover_after < _MIN_TAKEOVER:
            problems.append("takeover_after must be at least a second")
        problems += tls_problems(self)
        if problems:
            raise ConfigurationError(f"RedisConfig: {'; '.join(problems)}")


class Address:
    """`redis://user:password@host:port/db`, or rediss:// or unix://; prints no secrets."""

    def __init__(self, url: str, config: RedisConfig) -> None:
        """No error repeats any part of the URL: what is misplaced in it is often the password."""
        parts = _split(url)
        try:
            found: dict[str, Any] = dict(parse_url(url))
        except ValueError:
            raise _bad("its port or an option behind the ? is not valid") from None
        self._kind = found.pop("connection_class", Connection)
        self._tls = _tls_context(parts, found, config)
        self._settings = found | {
            "socket_timeout": None,  # every call has a deadline of its own
            "socket_connect_timeout": config.connect_timeout.total_seconds(),
            "protocol": 2,
            "decode_responses": False,
        }
        self._printed = _printed(parts, found)
        self._check(parts)

    def __str__(self) -> str:
        return self._printed

    @property
    def has_tls(self) -> bool:
        return issubclass(self._kind, SSLConnection)

    def new_connection(self) -> Connection:
        """Not connected yet."""
        made: Connection = self._kind(**self._settings)
        if self._tls is not None and isinstance(made, SSLConnection):
            made.ssl_context.context = self._tls
        return made

    def _check(self, parts: SplitResult) -> None:
        """Find out now whether a connection could ever be made."""
        try:
            made = self.new_connection()
        except Exception:  # noqa: BLE001 - whatever the client says may quote the URL
            raise _bad(f"an option behind the ? is unknown; {_meant_options(parts)}") from None
        try:
            if isinstance(made, SSLConnection):
                made.ssl_context.get()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ConfigurationError(f"RedisConfig: ca_file or certificate: {why}") from error


def _tls_context(
    parts: SplitResult, found: dict[str, Any], config: RedisConfig
) -> ssl.SSLContext | None:
    """None without TLS settings: the client then makes a context from the options of the URL."""
    if not has_tls_settings(config):
        return None
    if parts.scheme != "rediss":
        raise ConfigurationError(f"RedisConfig: TLS settings need rediss://, not {parts.scheme}")
    if any(name.startswith("ssl_") for name in found):
        raise _bad("ssl_ options behind the ? exclude the TLS settings of RedisConfig")
    return tls_context(config)


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


def _meant_options(parts: SplitResult) -> str:
    """Names the fields that were meant, never what was given: that may be a password."""
    given, known = parse_qs(parts.query), allowed_parameters(RedisConfig)
    meant = {name for option in given for name in get_close_matches(option, known, 1)}
    return f"did you mean {' or '.join(sorted(meant))}?" if meant else "see RedisConfig"


def _printed(parts: SplitResult, found: dict[str, Any]) -> str:
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = found.get("host", "localhost")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{found.get('port', 6379)}/{found.get('db', 0)}"


def _bad(why: str) -> ConfigurationError:
    return ConfigurationError(f"bad Redis URL: {why}")

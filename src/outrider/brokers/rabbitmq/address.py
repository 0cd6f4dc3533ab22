"""Where the broker is and how to log in, read from a URL; printing it shows no secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_MAX_HEARTBEAT: Final = 65_535
_MAX_VHOST: Final = 128


@dataclass(frozen=True, kw_only=True)
class Address:
    """`amqp://user:password@host:port/vhost?heartbeat=30`, each part percent-decoded."""

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
    if len(unquote(parts.path)) > _MAX_VHOST:
        raise _bad(f"the vhost has more than {_MAX_VHOST - 1} characters")
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
        raise _bad(f"only heartbeat may stand behind the ?, not {names}; see RabbitMQConfig")
    return query


def _heartbeat(query: Mapping[str, str]) -> int | None:
    text = query.get("heartbeat")
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _MAX_HEARTBEAT:
        raise _bad("heartbeat must be a number of seconds")
    return int(text)


def _bad(why: str) -> ConfigurationError:
    return ConfigurationError(f"bad RabbitMQ URL: {why}")

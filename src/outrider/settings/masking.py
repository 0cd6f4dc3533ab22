"""Passwords out of URLs and out of what drivers say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from sqlalchemy import URL

_URL: Final = re.compile(r"[\w+.-]+://\S+")
_NEXT_URL: Final = re.compile(r",(?=\w+://)")
_PARAMETER: Final = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|sslpassword)=)[^&\s]*")


def mask_url(url: str) -> str:
    """The URL, or several with commas between, for people: every password as ***."""
    return ",".join(map(_mask_one, _NEXT_URL.split(url)))


def _mask_one(url: str) -> str:
    """The password ends at the last @: an unencoded one may hold any character before that."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    login, at, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon:
        login = f"{user}:***"
    elif at and scheme in ("nats", "tls"):  # a token instead of user and password
        login = "***"
    return _PARAMETER.sub(r"\1***", scheme + separator + login + at + host)


def mask_password(message: str, url: URL) -> str:
    """A message about a database, without the password of its URL, however it is encoded.

    A password that is also a name, as in postgres:postgres, is masked by its position in a URL.
    """
    message = _URL.sub(lambda found: mask_url(found[0]), message)
    names = f"{url.drivername} {url.username} {url.host} {url.database}"
    for password in filter(None, (url.password, url.query.get("password"))):
        text = str(password)
        for spelling in () if text in names else (text, quote(text, safe=""), quote_plus(text)):
            message = message.replace(spelling, "***")
    return message

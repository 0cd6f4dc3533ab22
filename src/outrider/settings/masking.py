"""Passwords out of URLs and out of what drivers say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from sqlalchemy import URL

_USERINFO: Final = re.compile(r"(?<=//)([^/@:\s]*):([^@/\s]*)(?=@)")
_TOKEN: Final = re.compile(r"((?:nats|tls)://)[^/@:\s]+(?=@)")
_PARAMETER: Final = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|sslpassword)=)[^&\s]*")


def mask_url(url: str) -> str:
    """The URL for people: user and host as they are, every password as ***."""
    masked = _TOKEN.sub(r"\1***", _USERINFO.sub(r"\1:***", url))
    return _PARAMETER.sub(r"\1***", masked)


def mask_password(message: str, url: URL) -> str:
    """A message about a database, without the password of its URL, however it is encoded."""
    for password in filter(None, (url.password, url.query.get("password"))):
        text = str(password)
        for spelling in (text, quote(text, safe=""), quote_plus(text)):
            message = message.replace(spelling, "***")
    return message

"""Passwords out of URLs, wherever they stand in them."""

from __future__ import annotations

import re
from typing import Final

_USERINFO: Final = re.compile(r"(?<=//)([^/@:\s]*):([^@/\s]*)(?=@)")
_TOKEN: Final = re.compile(r"((?:nats|tls)://)[^/@:\s]+(?=@)")
_PARAMETER: Final = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|sslpassword)=)[^&\s]*")


def mask_url(url: str) -> str:
    """The URL for people: user and host as they are, every password as ***."""
    masked = _TOKEN.sub(r"\1***", _USERINFO.sub(r"\1:***", url))
    return _PARAMETER.sub(r"\1***", masked)

"""JSON over HTTP within this machine, as the demo's users and its relay speak it."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


async def ask(method: str, url: str, body: object, headers: Mapping[str, str] | None = None) -> Any:
    """What is answered; ConnectionError if nothing is, or a refusal."""
    return await asyncio.to_thread(_ask, method, url, json.dumps(body), headers or {})


def _ask(method: str, url: str, body: str, headers: Mapping[str, str]) -> Any:
    where = urlsplit(url)
    link = http.client.HTTPConnection(where.netloc, timeout=10)
    try:
        link.request(method, where.path, body, {"Content-Type": "application/json", **headers})
        answer = link.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"{where.netloc}: {type(error).__name__}") from None
    finally:
        link.close()
    if answer.status >= 400:
        raise ConnectionError(f"{where.netloc} answers {answer.status}")
    return json.loads(text)

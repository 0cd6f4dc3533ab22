"""JSON requests over HTTP to this machine, for the demo's users and its relay."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


async def request_json(
    method: str, url: str, body: object, headers: Mapping[str, str] | None = None
) -> Any:
    """The JSON of the response; raises ConnectionError if there is none, or an error status."""
    return await asyncio.to_thread(_request, method, url, json.dumps(body), headers or {})


def _request(method: str, url: str, body: str, headers: Mapping[str, str]) -> object:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=10)
    try:
        content_type = {"Content-Type": "application/json"}
        connection.request(method, address.path, body, {**content_type, **headers})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"{address.netloc}: {type(error).__name__}") from None
    finally:
        connection.close()
    if response.status >= 400:
        raise ConnectionError(f"{address.netloc} answers {response.status}")
    return json.loads(text)

"""Proxies that hurt the connections between a test's processes and its servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

from outrider.testing.faulty_proxy import FaultyProxy

Proxies = dict[str, FaultyProxy]


@asynccontextmanager
async def links_to(**urls: str) -> AsyncIterator[Proxies]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(link_to(url)) for name, url in urls.items()}


def link_to(url: str, listen: int = 0) -> FaultyProxy:
    address = urlsplit(url)
    return FaultyProxy(address.hostname or "", address.port or 0, listen=listen)

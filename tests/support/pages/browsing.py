"""A browser that records errors, requests to other sites, and dialogs of a page."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from playwright.async_api import Browser, Page, async_playwright
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.routing import Mount

from outrider.dashboard import dashboard
from outrider.testing.services.install.programs import Program
from outrider.testing.services.ports import LOOPBACK
from tests.support.pages.pages import living

MAX_WAIT_S = 60.0
PHONE = {"width": 360, "height": 740}
CHROMIUM = Program(
    service="chromium",
    names=("chromium", "chromium-browser", "google-chrome"),
    package="chromium",
    remedy="apt-get install chromium",
)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    program = await asyncio.to_thread(CHROMIUM.get, install=True)
    async with async_playwright() as playwright:
        # Chromium has no sandbox for root; it opens only our own pages.
        started = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        await started.close()


@asynccontextmanager
async def served(engine: AsyncEngine, **options: Any) -> AsyncIterator[str]:
    """The page under /outbox of an application, over real HTTP."""
    page = dashboard(engine, **options)
    app = Starlette(routes=[Mount("/outbox", page)])
    with socket.create_server((LOOPBACK, 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        running = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                while not server.started and not running.done():  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.01)
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/outbox"
        finally:
            server.should_exit = True
            async with living(page):
                await running


@asynccontextmanager
async def watched(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """A tab; the test fails if the page caused an error."""
    context = await browser.new_context(**options)
    context.set_default_timeout(MAX_WAIT_S * 1000)
    page = await context.new_page()
    complaints: list[str] = []
    host = urlsplit(url).netloc

    def look_at(request: Any) -> None:
        if urlsplit(request.url).netloc != host:
            complaints.append(f"asked for {request.url}")

    async def dismiss(dialog: Any) -> None:
        complaints.append(f"dialog {dialog.message}")
        await dialog.dismiss()

    page.on("console", lambda said: _complain(complaints, said))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", look_at)
    page.on("dialog", dismiss)
    await page.goto(url)
    yield page
    await context.close()
    assert complaints == []


def _complain(complaints: list[str], said: Any) -> None:
    if said.type in ("error", "warning"):
        complaints.append(said.text)

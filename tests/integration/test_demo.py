"""The demo: it runs by itself, survives an outage and a crash, and its page has what it shows."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from outrider.demo.app import Demo, demo_app


def test_demo_ends_by_itself_after_an_outage_and_a_crash() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        command = ["demo", "--seconds", "8", "--port", str(busy.getsockname()[1])]
        done = subprocess.run(
            [sys.executable, "-m", "outrider", *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "All is well." in done.stdout
    assert "duplicates skipped" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.fixture
async def demo(tmp_path: Path) -> AsyncIterator[Demo]:
    made = Demo(f"sqlite:///{tmp_path}/shop.db", 1)  # nobody listens there: no relay gets through
    async with made.running():
        yield made


async def test_business_rows_and_outbox_rows_are_shown_side_by_side(demo: Demo) -> None:
    async with asyncio.timeout(30):
        while not (await demo.state())["orders"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await demo.act("poison")

    state = await demo.state()

    assert len(state["orders"]) == len([e for e in state["outbox"] if "placed" in e["event_type"]])
    assert state["counts"]["pending"] == len(state["outbox"])


async def test_page_has_its_buttons_and_actions_are_for_this_site_only(demo: Demo) -> None:
    transport = httpx.ASGITransport(demo_app(demo))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        page = await http.get("/")
        other = await http.post("/do/break", headers={"Sec-Fetch-Site": "cross-site"})
        unknown = await http.post("/do/nothing")
        fine = await http.post("/do/break", headers={"Sec-Fetch-Site": "same-origin"})
        refused = await http.post("/broker", content="[]")

    for button in ("Break the broker", "Crash the relay", "Poison an event"):
        assert button in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert [other.status_code, unknown.status_code, fine.status_code] == [403, 404, 204]
    assert refused.status_code == 503

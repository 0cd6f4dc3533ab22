"""The event logger's page: what is served, and what a browser makes of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.examples.event_logger_client import Logger
from tests.support.examples.serving import MAX_WAIT_S, serving

MARKUP = "<img src=x onerror=alert(1)> & <b>bold</b>"


@pytest.fixture
def logger(tmp_path: Path) -> Iterator[Logger]:
    database = Database(f"sqlite:///{tmp_path / 'outbox.db'}")
    with (
        serving("event_logger", tmp_path, {"DATABASE_URL": database.url}) as application,
        Logger(application.url, database) as logger,
    ):
        yield logger


def test_page_has_its_script_in_a_file_and_forbids_any_other(logger: Logger) -> None:
    # when
    page = logger.http.get("/").raise_for_status()

    # then
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script[^>]*>([^<]*)", page.text) == [""]
    assert not re.search(r"\son\w+=|style=|<style", page.text)
    for file in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert logger.http.get(file).status_code == 200
    script = logger.http.get("/page/page.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "new EventSource" in script.text


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        own = Path(started.chromium.executable_path)
        program = str(own) if own.exists() else shutil.which("chromium")
        if program is None:
            pytest.skip("there is no Chromium")
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_page_shows_events_as_they_arrive_and_goes_on_after_a_reload(
    logger: Logger, browser: Any
) -> None:
    # given
    logger.send("before anybody looked")
    page, asked, troubles = browser.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url.removeprefix(logger.url)))
    page.set_default_timeout(MAX_WAIT_S * 1000)
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(logger.url)
    page.locator("#state", has_text="live").wait_for()

    def shown(count: int) -> list[str]:
        page.locator("#events li").nth(count - 1).wait_for()
        return list(page.locator("#events li span").all_text_contents())

    # when: one comes from here, and one from elsewhere
    page.fill("input[name=text]", MARKUP)
    page.click("button")
    shown(2)
    logger.send("from elsewhere")

    # then
    assert shown(3) == ["from elsewhere", MARKUP, "before anybody looked"]
    newest = page.locator("#events li small").first.text_content()
    assert newest == str(logger.row("lobby").id)

    # and while nobody looks, nothing is missed, and nothing comes twice
    page.goto("about:blank")
    logger.send("while away")
    page.goto(logger.url)
    shown(4)
    page.reload()
    logger.send("after the reload")
    assert shown(5) == [
        *("after the reload", "while away", "from elsewhere"),
        *(MARKUP, "before anybody looked"),
    ]
    streams = [url for url in asked if url.startswith("/events")]
    assert streams == ["/events?from=start", *(f"/events?last_event_id={n}" for n in (3, 4))]
    assert troubles == []

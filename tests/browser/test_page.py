"""The page in a real browser: every screen and action is clicked, and the database has a look."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import InMemoryEventBus, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.testing.services.ports import free_ports
from tests.support.pages import axe
from tests.support.pages.browsing import MAX_WAIT_S, PHONE, browser, served, watched
from tests.support.pages.hostile import SCRIPTS
from tests.support.pages.pages import event, fail, record, run, states

SCREENS = ["Overview", "Events", "Failures", "Relays", "Inbox", "Audit"]
expect.set_options(timeout=MAX_WAIT_S * 1000)


async def fill(engine: AsyncEngine) -> None:
    """Something for every screen: failures of two kinds, a retry, a cause with its effects."""
    cause = event("order-1", "order.placed", total=2**60, note="two lamps").to_envelope()
    await record(engine, cause)
    await record(
        engine,
        *(event(f"invoice-{n}", "invoice.made") for n in range(3)),
        *(event(f"mail-{n}", "mail.sent") for n in range(2)),
        cause=cause,
    )
    await fail(engine, "invoice.made", "PublishRefused: too large")
    await fail(engine, "mail.sent", "NOT_FOUND")
    await record(engine, event("order-1", "order.paid"), event("order-2", "order.placed"))
    later = "UPDATE outbox SET next_retry_at = '2999-01-01 00:00:00' "
    await run(engine, later + "WHERE event_type = 'order.paid'")


def relay_elsewhere(engine: AsyncEngine) -> OutboxRelay:
    """At work, and without anything to do that a test counts."""
    return OutboxRelay(
        SqlOutboxStore(engine, sink="other"), InMemoryEventBus(), RelayConfig(name="r")
    )


async def heading(page: Page, text: str) -> None:
    await expect(page.get_by_role("heading", level=1)).to_contain_text(text)


# The page asks both databases by the same code, which tests/integration compares.
on_sqlite = pytest.mark.parametrize("database", ["sqlite+aiosqlite"], indirect=True)


async def test_every_screen_is_reached_by_clicks(database: AsyncEngine) -> None:
    await fill(database)

    async with (
        relay_elsewhere(database),
        browser() as chromium,
        served(database, show_payload=True) as url,
        watched(chromium, url + "/") as page,
    ):
        for name in SCREENS:
            await page.get_by_role("link", name=name, exact=True).click()
            await heading(page, name)
        await page.get_by_role("link", name="Overview", exact=True).click()
        await expect(page.locator("#pending")).to_have_attribute("data-points", re.compile("[1-9]"))
        await page.get_by_role("link", name="Relays", exact=True).click()
        await expect(page.locator(".lanes li")).to_have_count(64)
        await page.get_by_role("link", name="Events", exact=True).click()
        await page.get_by_label("Type").fill("order.placed")
        await page.get_by_label("Aggregate id").fill("order-1")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="order.placed").click()
        await heading(page, "order.placed")
        await expect(page.get_by_label("Payload")).to_contain_text(str(2**60))
        await expect(page.get_by_role("region", name="Neighbours")).to_contain_text("order.paid")
        await page.locator("#caused").get_by_role("link", name="invoice.made").first.click()
        await heading(page, "invoice.made")
        await expect(page.locator("#caused")).to_contain_text("Caused by")


@on_sqlite
async def test_failures_are_retried_and_discarded_by_clicks(database: AsyncEngine) -> None:
    await fill(database)

    async with (
        browser() as chromium,
        served(database, who=lambda _: "ada") as url,
        watched(chromium, url + "/failures") as page,
    ):
        group = page.get_by_role("region", name="invoice.made at default")
        await group.get_by_role("button", name="Retry these").click()
        await heading(page, "Retry 3 events?")
        await page.get_by_role("button", name="Retry 3 events").click()
        await heading(page, "Audit")
        assert await states(database) == {"pending": 6, "failed": 2}

        await page.get_by_role("link", name="Events", exact=True).click()
        await page.get_by_label("Type").fill("mail.*")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("button", name="Discard all matching").click()
        await heading(page, "Discard 2 events?")
        await page.get_by_role("button", name="Discard 2 events").click()
        await heading(page, "Audit")
        table = page.get_by_role("region", name="Actions")
        await expect(table.get_by_role("row")).to_have_count(3)

    assert await states(database) == {"pending": 6, "discarded": 2}
    done = await run(database, "SELECT who, action, events FROM outbox_actions ORDER BY id")
    assert done == [("ada", "retry", 3), ("ada", "discard", 2)]


@on_sqlite
async def test_number_that_has_changed_meanwhile_is_told_and_nothing_done(
    database: AsyncEngine,
) -> None:
    await fill(database)

    async with browser() as chromium, served(database) as url:
        context = await chromium.new_context()
        page = await context.new_page()
        await page.goto(f"{url}/actions/retry?event_type=mail.sent")
        await record(database, event("mail-9", "mail.sent"))
        await fail(database, "mail.sent", "NOT_FOUND")
        await page.get_by_role("button", name="Retry 2 events").click()
        await expect(page.get_by_role("alert")).to_contain_text("3 events match now, not 2")
        await context.close()

    assert (await states(database))["failed"] == 6


@on_sqlite
async def test_one_event_is_retried_by_keyboard_alone(database: AsyncEngine) -> None:
    await fill(database)

    async with (
        browser() as chromium,
        served(database) as url,
        watched(chromium, url + "/events?status=failed&event_type=mail.sent") as page,
    ):
        await _tab_to(page, "mail.sent")
        await page.keyboard.press("Enter")
        await heading(page, "mail.sent")
        await _tab_to(page, "Retry…")
        await page.keyboard.press("Enter")
        await heading(page, "Retry 1 event?")
        await _tab_to(page, "Retry 1 event")
        await page.keyboard.press("Enter")
        await heading(page, "Audit")

    assert (await states(database))["failed"] == 4


async def _tab_to(page: Page, text: str) -> None:
    await page.locator("body").press("Tab")
    for _ in range(60):
        if await page.evaluate("document.activeElement.textContent.trim()") == text:
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{text} cannot be reached by keyboard")


@on_sqlite
async def test_overview_follows_what_happens(database: AsyncEngine) -> None:
    await fill(database)

    async with (
        browser() as chromium,
        served(database) as url,
        watched(chromium, url + "/") as page,
    ):
        pending = page.locator("#live dd").first
        await expect(pending).to_have_text("3")
        await record(database, event("more"))
        await expect(pending).to_have_text("4")


@on_sqlite
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_serious_accessibility_fault(database: AsyncEngine, scheme: str) -> None:
    await fill(database)
    axe.source()
    [(found,)] = await run(database, "SELECT id FROM outbox WHERE position = 1")
    paths = ["/", "/events", f"/events/{found}", "/failures", "/relays", "/inbox", "/audit"]
    paths += [f"/events/{found}/caused", "/actions/retry", "/actions/discard"]

    async with (
        relay_elsewhere(database),
        browser() as chromium,
        served(database, show_payload=True) as url,
        watched(chromium, url + "/", color_scheme=scheme) as page,
    ):
        for path in paths:
            await page.goto(url + path)
            assert await axe.faults(page) == [], path


@on_sqlite
async def test_nothing_is_wider_than_a_phone(database: AsyncEngine) -> None:
    await fill(database)
    await record(database, event("x" * 200, "a.very.long.type." + "x" * 150))
    [(found,)] = await run(database, "SELECT id FROM outbox ORDER BY position DESC LIMIT 1")
    paths = ["/", "/events", f"/events/{found}", "/failures", "/relays", "/inbox", "/audit"]

    async with (
        browser() as chromium,
        served(database) as url,
        watched(chromium, url + "/", viewport=PHONE) as page,
    ):
        for path in [*paths, "/actions/discard?error=" + "x" * 300]:
            await page.goto(url + path)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"], path


@on_sqlite
async def test_hostile_texts_run_no_script_and_ask_nobody(database: AsyncEngine) -> None:
    made = [event(f"a{n}", "t.0").to_envelope() for n in range(len(SCRIPTS))]
    await record(database, *made)
    for number, script in enumerate(SCRIPTS, 1):
        document = json.dumps({"said": script, script: [script]})
        change = "UPDATE outbox SET event_type = :x, aggregate_type = :x, aggregate_id = :x, "
        change += "last_error = :x, sink = :x, payload = :d, metadata = :d, status = 'failed' "
        change += "WHERE position = :n"
        await run(database, change, x=script, d=document, n=number)
        mark = "INSERT INTO outbox_actions (who, action, filter) VALUES (:x, :x, :x)"
        await run(database, mark, x=script)

    async with (
        browser() as chromium,
        served(database, show_payload=True) as url,
        watched(chromium, url + "/") as page,
    ):
        for path in ("/events?limit=200", "/failures", "/audit", "/relays"):
            await page.goto(url + path)
            shown = await page.locator("main").text_content()
            if path != "/relays":
                assert SCRIPTS[0] in (shown or "")
        for one in made:
            await page.goto(f"{url}/events/{one.event_id}")
            await expect(page.locator("#caused")).to_be_visible()


@on_sqlite
async def test_page_stands_alone_behind_its_password(database: AsyncEngine) -> None:
    await fill(database)
    (port,) = free_ports(1)
    command = "from outrider.cli.commands.dashboard import dashboard; dashboard()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", command),
        *("--database", f"sqlite:///{Path(str(database.url.database))}"),
        *("--host", "0.0.0.0", "--port", str(port)),  # noqa: S104
        env={**os.environ, "OUTRIDER_DASHBOARD_PASSWORD": "canary-5"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}/"

    try:
        await _listens(port)
        login = {"http_credentials": {"username": "ada", "password": "canary-5"}}
        async with browser() as chromium, watched(chromium, url, **login) as page:
            await page.get_by_role("link", name="Failures", exact=True).click()
            await page.get_by_role("button", name="Retry all failed").click()
            await page.get_by_role("button", name="Retry 5 events").click()
            await heading(page, "Audit")
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = await process.communicate()

    assert b"canary" not in said
    assert await run(database, "SELECT who, events FROM outbox_actions") == [("ada", 5)]


async def _listens(port: int) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

"""The demo, as a newcomer meets it: a process, its page, its API and stream, its broken parts."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from click.testing import CliRunner
from playwright.async_api import expect

from outrider.cli.app import app
from outrider.demo.story import Summary
from outrider.testing.services.servers import postgres, rabbitmq
from tests.support.pages.browsing import PHONE, browser, watched
from tests.support.until import wait_until

MAX_WAIT_S = 90.0
COMMAND = (sys.executable, "-m", "outrider", "demo")


class Page:
    """What a browser does with a running demo."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=MAX_WAIT_S)

    def state(self) -> dict[str, Any]:
        return dict(self.http.get("/state").json())

    def press(self, button: str) -> None:
        answer = self.http.post(f"/do/{button}", headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code == 204, answer.text

    def send(self) -> str:
        ids = {name: str(uuid4()) for name in ("account_id", "channel_id", "template_id")}
        message = {**ids, "contact_group_ids": [str(uuid4())], "total_recipients": 7}
        answer = self.http.post(
            "/api/group-messages", json=message, headers={"X-User-ID": str(uuid4())}
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        seen: list[dict[str, Any]] = []

        def holds() -> bool:
            seen[:] = [self.state()]
            return condition(seen[0])

        assert wait_until(holds, MAX_WAIT_S), seen
        return seen[0]

    def streamed(self, message: str, until: str = "group_message.created") -> list[str]:
        """The types of this message's events, as they come by server-sent events."""
        types: list[str] = []
        wanted = {"from": "start", "aggregate_id": message}
        deadline = time.monotonic() + MAX_WAIT_S
        with self.http.stream("GET", "/events", params=wanted) as stream:
            for line in stream.iter_lines():
                assert time.monotonic() < deadline, types
                if line.startswith("data: "):
                    types.append(json.loads(line.removeprefix("data: "))["type"])
                if until in types:
                    break
        return types


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """One demo for all tests; each leaves it repaired, and at the end Ctrl-C must end it well."""
    running = subprocess.Popen(
        [*COMMAND, "--port", str(_free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout
    said = next((line for line in running.stdout if "http" in line), "nothing")
    page = Page(re.findall(r"http://[\d.:]+", said)[0])
    yield page
    with page.http.stream("GET", "/events"):  # an open stream must not hold it up
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=MAX_WAIT_S)
    page.http.close()
    assert (running.returncode, rest.strip()) == (0, "The demo has ended.")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _is_notified(message: str) -> Callable[[dict[str, Any]], bool]:
    return lambda state: any(effect["message_id"] == message for effect in state["effects"])


def _is_calm(state: dict[str, Any]) -> bool:
    return bool(state["counts"]["failed"] == 0 and state["handled"] >= state["counts"]["published"])


def test_message_sent_through_the_api_travels_to_the_stream_and_takes_effect(page: Page) -> None:
    message = page.send()

    assert page.streamed(message) == ["group_message.created"]
    assert page.wait(_is_notified(message))


def test_requests_go_on_while_the_broker_is_broken_and_everything_arrives_afterwards(
    page: Page,
) -> None:
    page.streamed(page.send())  # the relay works

    page.press("break")
    try:
        message = page.send()
        broken = page.wait(lambda state: state["counts"]["pending"] > 3)
    finally:
        page.press("repair")

    assert broken["broker"]["broken"]
    assert not _is_notified(message)(broken)
    assert page.streamed(message) == ["group_message.created"]
    assert page.wait(_is_calm)["counts"]["failed"] == 0


def test_relay_that_dies_after_publishing_causes_duplicates_that_take_no_effect(page: Page) -> None:
    before = page.wait(lambda state: state["relay"]["alive"])

    page.press("crash")
    after = page.wait(lambda state: state["duplicates"] > before["duplicates"])

    assert after["relay"]["starts"] > before["relay"]["starts"]
    assert page.wait(_is_calm)


def test_poisoned_event_fails_alone_and_arrives_once_it_is_repaired(page: Page) -> None:
    page.press("poison")
    failed = page.wait(lambda state: state["counts"]["failed"] > 0)
    other = page.send()
    passed_by = page.streamed(other)
    poison = page.http.get("/outbox/api/events", params={"status": "failed"}).json()["events"][0]
    page.press("repair")

    assert passed_by == ["group_message.created"]
    assert failed["poisons"][-1] == poison["event_type"]
    assert page.streamed(poison["aggregate_id"], until=poison["event_type"])
    assert page.wait(_is_calm)


def test_users_go_through_the_whole_api(page: Page) -> None:
    kinds = ("group", "scheduled")

    def statuses() -> set[str]:
        lists = [page.http.get(f"/api/{kind}-messages?limit=100").json() for kind in kinds]
        return {
            f"{kind} {each['status']}"
            for kind, found in zip(kinds, lists, strict=True)
            for each in found
        }

    expected = {"group draft", "group queued", "scheduled pending", "scheduled paused"}

    assert wait_until(lambda: expected <= statuses(), MAX_WAIT_S), statuses()
    assert "/scheduled-messages/{message_id}" in page.http.get("/api/openapi.json").json()["paths"]


def test_actions_are_for_this_site_only(page: Page) -> None:
    other = page.http.post("/do/break", headers={"Sec-Fetch-Site": "cross-site"})
    unknown = page.http.post("/do/nothing")

    assert [other.status_code, unknown.status_code] == [403, 404]
    assert not page.state()["broker"]["broken"]


async def test_newcomer_sees_the_own_message_travel_in_a_browser(page: Page) -> None:
    async with browser() as chromium, watched(chromium, page.url, viewport=PHONE) as tab:
        for button in ("Break the broker", "Crash the relay", "Poison an event"):
            await expect(tab.get_by_role("button", name=button)).to_be_visible()
        await tab.get_by_role("button", name="Send a group message").click()
        travelled = re.compile(r"committed with its event \d.*broker \d.*handled once \d")

        await expect(tab.locator("#travel")).to_have_text(travelled, timeout=MAX_WAIT_S * 1000)
        await expect(tab.locator("#stream tr.mine")).to_be_visible()
        assert await tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def _told_by_itself(*options: str) -> str:
    done = subprocess.run(
        [*COMMAND, "--seconds", "5", *options],
        capture_output=True,
        text=True,
        timeout=2 * MAX_WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def _check(told: str) -> None:
    facts = r"(\d+) events recorded, (\d+) published, 0 failed, 0 pending; (\d+) handled once"
    recorded, published, handled = re.findall(facts, told)[0]
    assert int(recorded) == int(published) == int(handled) >= 5
    assert int(re.findall(r"(\d+) duplicates", told)[0]) > 0
    assert int(re.findall(r"(\d+) events waited", told)[0]) > 0
    assert "All is well." in told


def test_demo_ends_by_itself_after_an_outage_and_a_crash_also_on_a_busy_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        told = _told_by_itself("--port", str(busy.getsockname()[1]))

    assert "is busy; another one is taken" in told
    _check(told)


def test_demo_tells_the_same_story_on_real_servers() -> None:
    for program in (postgres.PROGRAM, rabbitmq.PROGRAM):
        program.get(install=True)

    told = _told_by_itself("--postgres", "--rabbitmq", "--port", str(_free_port()))

    _check(told)


def test_missing_library_of_a_real_server_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.demo.servers.find_spec", lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)

    told = CliRunner().invoke(app, ["demo", "--rabbitmq", "--port", str(_free_port())])

    assert told.exit_code == 2
    assert "missing: psutil, pamqp" in told.output
    assert "outrider[demo,testing,rabbitmq]" in told.output


@pytest.mark.parametrize(
    ("published", "failed", "handled", "starts", "fine"),
    [
        (7, 0, 7, 2, True),
        (6, 1, 6, 2, True),
        (6, 0, 6, 2, False),
        (7, 0, 6, 2, False),
        (0, 7, 0, 2, False),
        (7, 0, 7, 1, False),
    ],
)
def test_summary_is_fine_only_if_everything_arrived_or_is_shown_as_failed_after_a_crash(
    published: int, failed: int, handled: int, starts: int, fine: bool
) -> None:
    counts = {"recorded": 7, "published": published, "failed": failed}
    state = {"counts": counts, "handled": handled, "relay": {"starts": starts}}

    summary = Summary(state=state, pending_in_outage=1)

    assert summary.is_fine == fine

"""The page keeps out who is not let in, and takes no text for anything but text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from outrider import ConfigurationError
from outrider.admin.filters import EventFilter
from outrider.cli.commands.dashboard import dashboard as command
from outrider.cli.commands.dashboard import dashboard_app as standalone
from outrider.dashboard import dashboard
from outrider.store.schema.names import OutboxNames
from tests.support.pages.hostile import SCRIPTS, VALUES
from tests.support.pages.pages import SAME_SITE, client_of, event, page_of, record, run, states

ID = "0195d0a2-0000-7000-8000-000000000001"
FORM = {"status": "failed", "expected": "1"}


def requests_of(app: Starlette) -> Iterator[tuple[str, str]]:
    """Every method of every route, with something in each place."""
    for route in app.routes:
        if isinstance(route, Route):
            path = route.path.replace("{event_id:uuid}", ID).replace("{verb}", "retry")
            yield from ((method, path) for method in sorted(route.methods or ()))
        elif isinstance(route, Mount):
            yield "GET", f"{route.path}/page.css"


async def one_failed(engine: AsyncEngine) -> None:
    await record(engine, event("a", "t.0"))
    await run(engine, "UPDATE outbox SET status = 'failed' WHERE status = 'pending'")


async def refuse_later(_request: object, _action: str) -> bool:
    return False


@pytest.mark.parametrize("authorize", [lambda _request, _action: False, refuse_later])
async def test_no_route_answers_without_access(database: AsyncEngine, authorize: Any) -> None:
    await one_failed(database)
    app = dashboard(database, authorize=authorize)

    async with client_of(app) as page:
        asked = list(requests_of(app))
        answers = [await page.request(*one, headers=SAME_SITE) for one in asked]

    assert len(asked) > 20
    assert {answer.status_code for answer in answers} == {403}
    assert {answer.text for answer in answers} <= {"No access.\n", ""}
    assert await states(database) == {"failed": 1}


async def test_every_answer_has_the_protecting_headers(database: AsyncEngine) -> None:
    app = dashboard(database)

    async with client_of(app) as page:
        answers = [await page.request(*one) for one in requests_of(app)]
        answers.append(await page.get("/nothing"))

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]


FOREIGN = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost:1"},
    {"Origin": "null"},
    {"Referer": "http://localhost/"},
]
OWN = [
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://localhost"},
]


async def test_post_of_another_site_is_refused(database: AsyncEngine) -> None:
    await one_failed(database)

    async with page_of(database) as page:
        for headers, verb in product(FOREIGN, ("retry", "discard")):
            for path in (f"/actions/{verb}", f"/api/actions/{verb}"):
                answer = await page.post(path, data=FORM, headers=headers)
                assert answer.status_code == 403, (path, headers)

    assert await states(database) == {"failed": 1}


async def test_post_of_the_page_itself_is_accepted(database: AsyncEngine) -> None:
    for headers in OWN:
        await one_failed(database)

        async with page_of(database) as page:
            answer = await page.post("/actions/discard", data=FORM, headers=headers)

        assert answer.status_code == 303

    assert await states(database) == {"discarded": 3}


async def test_looking_changes_nothing(database: AsyncEngine) -> None:
    await one_failed(database)

    async with page_of(database) as page:
        await page.get("/actions/retry", params=FORM)
        await page.get("/actions/discard", params=FORM)

    assert await states(database) == {"failed": 1}


@pytest.mark.parametrize(
    "options",
    [{"read_only": True}, {"authorize": lambda _request, action: action == "look"}],
    ids=["read only", "may only look"],
)
async def test_who_may_only_look_can_change_nothing(
    database: AsyncEngine, options: dict[str, Any]
) -> None:
    await one_failed(database)

    async with page_of(database, **options) as page:
        shown = (await page.get("/failures")).text + (await page.get("/events")).text
        for verb in ("retry", "discard"):
            asked = await page.get(f"/actions/{verb}")
            done = await page.post(f"/actions/{verb}", data=FORM, headers=SAME_SITE)
            assert (asked.status_code, done.status_code) == (403, 403)

    assert "read only" in shown
    assert "/actions/" not in shown
    assert await states(database) == {"failed": 1}


async def test_action_is_asked_for_by_its_name(database: AsyncEngine) -> None:
    await one_failed(database)
    asked = []

    def authorize(_request: object, action: str) -> bool:
        asked.append(action)
        return action != "discard"

    async with page_of(database, authorize=authorize) as page:
        discarded = await page.post("/actions/discard", data=FORM, headers=SAME_SITE)
        retried = await page.post("/actions/retry", data=FORM, headers=SAME_SITE)

    assert (discarded.status_code, retried.status_code) == (403, 303)
    assert {"look", "retry", "discard"} <= set(asked)


ELSEWHERE: list[dict[str, Any]] = [
    {"address": "192.0.2.7"},
    {"base_url": "http://rebound.example"},
    {"headers": {"X-Forwarded-For": "192.0.2.7"}},
    {"headers": {"Forwarded": "for=192.0.2.7"}},
]


async def test_without_a_callback_only_this_machine_is_let_in(database: AsyncEngine) -> None:
    for options in ELSEWHERE:
        async with client_of(dashboard(database), **options) as page:
            answer = await page.get("/")

        assert answer.status_code == 403, options
        assert "authorize" in answer.text


@pytest.mark.parametrize("nonsense", ["[", "[::1", "//[", "http://["])
async def test_headers_that_are_no_address_are_refused(
    database: AsyncEngine, nonsense: str
) -> None:
    async with page_of(database) as client:
        as_host = await client.get("/", headers={"Host": nonsense})
        as_origin = await client.post("/actions/retry", data=FORM, headers={"Origin": nonsense})

    assert (as_host.status_code, as_origin.status_code) == (403, 403)


async def test_hostile_text_in_every_column_is_shown_as_text(database: AsyncEngine) -> None:
    made = [event(f"a{n}", "t.0", text="x").to_envelope() for n in range(len(SCRIPTS))]
    await record(database, *made)
    columns = "sink = :x, event_type = :x, aggregate_type = :x, aggregate_id = :x, last_error = :x"
    for number, script in enumerate(SCRIPTS, 1):
        await run(
            database,
            f"UPDATE outbox SET {columns}, status = 'failed', next_retry_at = NULL, "  # noqa: S608
            "payload = CAST(:doc AS json), metadata = CAST(:doc AS json) WHERE position = :n"
            if database.dialect.name == "postgresql"
            else f"UPDATE outbox SET {columns}, status = 'failed', "  # noqa: S608
            "payload = :doc, metadata = :doc WHERE position = :n",
            x=script,
            doc=_document(script),
            n=number,
        )
        await run(
            database,
            "INSERT INTO outbox_actions (who, action, filter, events) VALUES (:x, :x, :x, 1)",
            x=script,
        )

    async with page_of(database, show_payload=True) as page:
        shown = [await page.get("/events?limit=200"), await page.get("/failures")]
        shown += [await page.get(f"/events/{one.event_id}") for one in made]
        shown += [await page.get("/audit")]
        shown += [await page.get("/events", params={"error": script}) for script in SCRIPTS]
        shown += [
            await page.get("/actions/retry", params={"event_type": "t.0", "error": SCRIPTS[0]})
        ]

    ours = re.compile(r"<script src=\"/static/[\w.]+\" defer></script>")
    for answer in shown:
        assert answer.status_code == 200
        rest = ours.sub("", answer.text)
        tags = re.findall(r"<[a-zA-Z!/][^>]*>", rest)
        assert not [tag for tag in tags if re.search(r"evil|alert|javascript:", _bare(tag))]
    assert html.escape(SCRIPTS[0], quote=False) in shown[0].text


def _document(script: str) -> str:
    return json.dumps({"said": script, "more" + script: [script]})


def _bare(tag: str) -> str:
    """A tag without its quoted values, which may hold anything."""
    return re.sub(r'"[^"]*"', "", tag)


async def test_injection_in_filters_finds_nothing_and_breaks_nothing(
    database: AsyncEngine,
) -> None:
    await one_failed(database)
    names = [*(field.name for field in fields(EventFilter)), "before", "limit"]

    async with page_of(database) as page:
        for name in names:
            for value in VALUES:
                answer = await page.get("/api/events", params={name: value})
                assert answer.status_code in (200, 400), (name, value)
                harmless = (name == "last" and value == "9" * 40) or name in ("since", "until")
                harmless |= name in ("before", "limit")
                assert harmless or not answer.json().get("events"), (name, value)
        for value in VALUES:
            asked = await page.get("/api/actions/retry", params={"event_type": value})
            assert asked.status_code == 400 or asked.json()["events"] == 0, value

    assert await states(database) == {"failed": 1}


async def test_no_file_outside_of_static_is_served(database: AsyncEngine) -> None:
    outside = ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd")

    async with page_of(database) as page:
        for path in outside:
            asked = httpx.Request("GET", f"http://localhost/static/{path}")
            assert (await page.send(asked)).status_code == 404


async def test_too_much_text_in_a_post_is_refused(database: AsyncEngine) -> None:
    async with page_of(database) as page:
        long = {"event_type": "x" * 100_000, "expected": "1"}
        many = {str(n): "x" for n in range(100)}
        answers = [
            await page.post("/actions/retry", data=form, headers=SAME_SITE) for form in (long, many)
        ]

    assert [answer.status_code for answer in answers] == [413, 400]


async def test_password_opens_and_the_name_is_kept(database: AsyncEngine) -> None:
    await one_failed(database)
    app = standalone(database, OutboxNames(), "pässword", read_only=False, show_payload=False)

    async with client_of(app, address="192.0.2.7", base_url="http://page.example") as page:
        closed = [
            await page.get("/"),
            await page.get("/static/page.css", auth=("ada", "wrong")),
            await page.get("/", headers={"Authorization": "Basic ???"}),
            await page.get("/", headers={"Authorization": "Bearer pässword".encode()}),
            await page.post("/actions/retry", data=FORM, headers=SAME_SITE),
        ]
        login = {"auth": httpx.BasicAuth("ada", "pässword")}
        opened = await page.get("/", **login)
        done = await page.post("/actions/retry", data=FORM, headers=SAME_SITE, **login)

    assert [answer.status_code for answer in closed] == [401] * 5
    assert "Basic" in closed[0].headers["www-authenticate"]
    assert (opened.status_code, done.status_code) == (200, 303)
    assert await run(database, "SELECT who FROM outbox_actions") == [("ada",)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "page.example"])  # noqa: S104
def test_other_address_without_a_password_is_refused(tmp_path: Path, host: str) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"

    done = CliRunner().invoke(command, ["--database", url, "--host", host])

    assert done.exit_code == 2
    assert "password" in done.output
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:canary-3@127.0.0.1:1/shop",
        "postgresql://ada@127.0.0.1:1/shop?password=canary-3",
    ],
)
def test_passwords_of_the_database_are_in_no_output(url: str) -> None:
    arguments = ["--database", url, "--password", "canary-4"]

    done = CliRunner().invoke(command, arguments)

    assert done.exit_code == 3
    assert "canary" not in done.output


@pytest.mark.parametrize("given", [{"first": "9" * 40}, {"last": "-1"}, {"error": "a\0b"}])
def test_filter_refuses_what_no_column_can_hold(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="not understood"):
        EventFilter.parse(given)

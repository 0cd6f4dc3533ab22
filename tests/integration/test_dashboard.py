"""The page by HTTP: every screen tells what is in the database, every action changes it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.routing import Mount

from outrider import EventMetadata, InMemoryEventBus, OutboxRelay, RelayConfig, SqlOutboxStore
from outrider.admin.summaries import SinkSummary
from outrider.dashboard import app as page_module
from outrider.dashboard import dashboard
from outrider.dashboard.samples import Sampler
from tests.support.pages.pages import (
    JSON,
    SAME_SITE,
    client_of,
    event,
    fail,
    living,
    page_of,
    record,
    run,
    states,
)

STATIC = Path(page_module.__file__).parent / "static"
SCREENS = ["/", "/events", "/failures", "/relays", "/inbox", "/audit"]


@pytest.mark.parametrize("path", SCREENS)
async def test_every_screen_has_words_for_an_empty_outbox(database: AsyncEngine, path: str) -> None:
    async with page_of(database) as page:
        answer = await page.get(path)

    assert answer.status_code == 200
    assert re.search(r"\b(No|Nothing|Nobody)\b", answer.text)


async def test_overview_names_sinks_that_have_no_relay_yet(database: AsyncEngine) -> None:
    await record(database, event("a"), event("b"), event("c", "thing.broken"))
    await fail(database, "thing.broken")

    async with page_of(database) as page:
        shown = (await page.get("/")).text
        [sink] = (await page.get("/", headers=JSON)).json()["sinks"]

    assert (sink["summary"]["pending"], sink["summary"]["failed"], sink["relays"]) == (2, 1, 0)
    assert "/events?sink=default&amp;status=pending" in shown


async def test_every_screen_is_there_for_programs_too(database: AsyncEngine) -> None:
    await record(database, event("a"), event("b"))

    async with page_of(database) as page:
        for path in SCREENS:
            asked = await page.get(path, headers=JSON)
            api = await page.get("/api" + path.rstrip("/"))
            assert asked.headers["content-type"] == api.headers["content-type"]
            assert asked.json().keys() == api.json().keys()


async def test_filter_in_the_url_narrows_the_list(database: AsyncEngine) -> None:
    await record(database, event("a"), event("a", "other.made"), event("b"))

    async with page_of(database) as page:
        found = await page.get("/api/events", params={"event_type": "thing.*", "aggregate_id": "a"})
        shown = await page.get("/events", params={"event_type": "thing.*", "aggregate_id": "a"})

    assert [line["aggregate_id"] for line in found.json()["events"]] == ["a"]
    assert "other.made" not in shown.text
    assert 'value="thing.*"' in shown.text


async def test_pages_lead_to_the_oldest_event_and_keep_the_filter(database: AsyncEngine) -> None:
    await record(database, *(event(f"a{n}") for n in range(7)))
    path, seen = "/events?event_type=thing.*&limit=3", []

    async with page_of(database) as page:
        while path:
            shown = (await page.get(path)).text
            seen += re.findall(r"<code>(a\d)</code>", shown)
            more = re.search(r'href="([^"]+)" rel="next"', shown)
            path = more[1].replace("&amp;", "&") + "&limit=3" if more else ""

    assert seen == [f"a{n}" for n in range(6, -1, -1)]


async def test_event_tells_its_story(database: AsyncEngine) -> None:
    cause = event("cause").to_envelope()
    await record(database, cause, event("cause", "cause.again"))
    await record(database, event("effect", "effect.made"), cause=cause)
    await fail(database, "effect.made", "PublishRefused: too large")
    sql = "INSERT INTO processed_events (event_id, handler_name) VALUES (:id, 'billing')"
    given = cause.event_id if database.dialect.name == "postgresql" else cause.event_id.hex
    await run(database, sql, id=given)

    async with page_of(database) as page:
        story = (await page.get(f"/api/events/{cause.event_id}")).json()
        caused = (await page.get(f"/api/events/{cause.event_id}/caused")).json()
        [node] = caused["caused"]
        led = (await page.get(f"/api/events/{node['event']['event_id']}/caused")).json()
        failed = (await page.get(f"/events/{node['event']['event_id']}")).text
        tree = (await page.get(f"/events/{cause.event_id}/caused")).text

    assert [step["what"] for step in story["timeline"]] == ["happened", "recorded", "handled"]
    assert [line["event_type"] for line in story["neighbours"]] == ["thing.changed", "cause.again"]
    assert node["event"]["event_type"] == "effect.made"
    assert [line["event_id"] for line in led["causes"]] == [str(cause.event_id)]
    assert "PublishRefused: too large" in failed
    assert "effect.made" in tree


async def test_event_shows_its_last_attempts_with_time_and_reason(database: AsyncEngine) -> None:
    await record(database, changed := event().to_envelope())
    await fail(database, "thing.changed", "book: KeyError at shop.py:2 in book")
    attempts = [
        {"attempt": n, "at": f"2026-01-0{n}T10:00:00+00:00", "reason": f"reason {n}"}
        for n in (1, 2)
    ]
    await run(database, "UPDATE outbox SET attempts = :kept", kept=json.dumps(attempts))

    async with page_of(database) as page:
        story = (await page.get(f"/api/events/{changed.event_id}")).json()
        shown = (await page.get(f"/events/{changed.event_id}")).text

    refused = [step for step in story["timeline"] if step["what"] == "refused"]
    assert [(step["at"], step["error"]) for step in refused] == [
        (each["at"], each["reason"]) for each in attempts
    ]
    assert story["attempts"] == [{**each, "sink": "default"} for each in attempts]
    assert all(f"reason {n}" in shown and f"2026-01-0{n} 10:00:00" in shown for n in (1, 2))


async def test_failed_events_are_retried_by_group_after_the_impact_was_named(
    database: AsyncEngine,
) -> None:
    await record(database, *(event(f"a{n}", f"t.{n % 2}") for n in range(5)))
    await fail(database, "t.0", "Away")
    await fail(database, "t.1", "Bad")

    async with page_of(database, who=lambda _: "ada") as page:
        groups = (await page.get("/api/failures")).json()["failures"]
        first = groups[0]["filter"]
        question = await page.get("/actions/retry", params=first)
        form = {**first, "expected": "3"}
        done = await page.post("/actions/retry", data=form, headers=SAME_SITE)
        audit = (await page.get("/api/audit")).json()["actions"]
        shown = (await page.get(done.headers["location"])).text

    assert [(g["group"]["event_type"], g["group"]["events"]) for g in groups] == [
        ("t.0", 3),
        ("t.1", 2),
    ]
    assert "Retry 3 events?" in question.text
    assert done.status_code == 303
    assert await states(database) == {"pending": 3, "failed": 2}
    assert [(a["who"], a["action"], a["events"]) for a in audit] == [("ada", "retry", 3)]
    assert "ada" in shown


async def test_discarded_by_filter_and_answered_to_a_program(database: AsyncEngine) -> None:
    await record(database, event("a"), event("b"))

    async with page_of(database) as page:
        form = {"aggregate_id": "a", "expected": "1"}
        done = await page.post("/api/actions/discard", data=form, headers=SAME_SITE)

    assert done.json() == {"discard": 1}
    assert await states(database) == {"pending": 1, "discarded": 1}


async def test_discarded_event_is_offered_a_retry_and_comes_back(database: AsyncEngine) -> None:
    await record(database, given := event("a"))
    await run(database, "UPDATE outbox SET status = 'discarded', published_at = created_at")
    named = {"event_id": str(given.event_id)}

    async with page_of(database) as page:
        shown = (await page.get(f"/events/{given.event_id}")).text
        refused = (await page.get("/actions/discard", params=named)).text
        question = (await page.get("/actions/retry", params=named)).text
        form = {**named, "expected": "1"}
        await page.post("/actions/retry", data=form, headers=SAME_SITE)

    assert "Retry…" in shown
    assert "Discard…" not in shown
    assert f"discard takes failed and pending events; {given.event_id} is discarded" in refused
    assert "The matching failed and discarded events" in question
    assert await states(database) == {"pending": 1}


async def test_nothing_is_done_if_the_number_has_changed(database: AsyncEngine) -> None:
    await record(database, event("a", "t.0"), event("b", "t.0"))
    await fail(database, "t.0")

    async with page_of(database) as page:
        for expected, status in (("1", 409), ("", 400), ("many", 400), ("9" * 30, 400)):
            form = {"event_type": "t.0", "expected": expected}
            answer = await page.post("/actions/retry", data=form, headers=SAME_SITE)
            assert answer.status_code == status, expected

    assert await states(database) == {"failed": 2}


async def test_relays_lanes_and_blocked_aggregates_are_shown(database: AsyncEngine) -> None:
    await record(database, event("stuck"))
    await run(database, "UPDATE outbox SET next_retry_at = '2999-01-01 00:00:00' WHERE 1 = 1")
    relay = OutboxRelay(SqlOutboxStore(database), InMemoryEventBus(), RelayConfig(name="r-1"))

    async with page_of(database) as page, relay, asyncio.timeout(30):
        while not (facts := (await page.get("/api/relays")).json())["lanes"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        shown = (await page.get("/relays")).text

    assert [(r["name"], r["alive"]) for r in facts["relays"]] == [("r-1", True)]
    assert {lane["relay"] for lane in facts["lanes"]} == {"r-1"}
    assert [line["aggregate_id"] for line in facts["blocked"]] == ["stuck"]
    assert "Blocked aggregates" in shown


async def test_parked_aggregates_are_shown_with_what_ends_it(database: AsyncEngine) -> None:
    await record(database, broken := event("a", "thing.broken"), waiting := event("a"))
    await fail(database, "thing.broken", "Boom")
    await run(database, "INSERT INTO outbox_sinks (sink, parks) VALUES ('default', TRUE)")

    async with page_of(database) as page:
        [sink] = (await page.get("/api")).json()["sinks"]
        [parked] = (await page.get("/api/relays")).json()["parked"]
        overview, shown = (await page.get("/")).text, (await page.get("/relays")).text
        one = (await page.get(f"/events/{waiting.event_id}")).text

    assert sink["summary"]["parked"] == 1
    assert (parked["failed"]["event_id"], parked["events"]) == (str(broken.event_id), 1)
    assert "<dt>Parked</dt>" in overview
    assert f'name="event_id" value="{broken.event_id}"' in shown
    assert "Retry…" in shown
    assert "Discard…" in shown
    assert "waits behind a failed event" in one


async def test_inbox_shows_handlers(database: AsyncEngine) -> None:
    sql = "INSERT INTO processed_events (event_id, handler_name) VALUES (:id, 'billing')"
    for _ in range(2):
        made = uuid4()
        await run(database, sql, id=made if database.dialect.name == "postgresql" else made.hex)

    async with page_of(database) as page:
        [handler] = (await page.get("/api/inbox")).json()["handlers"]

    assert (handler["handler"], handler["events"]) == ("billing", 2)


async def test_payload_is_shown_only_where_allowed_and_never_its_secrets(
    database: AsyncEngine,
) -> None:
    said = {"note": "visible", "user": {"apiToken": "canary-1"}, "n": 2**60 + 1}
    made = event("a", **said).to_envelope().with_metadata(EventMetadata(user_id="person-5"))
    await record(database, made)
    path = f"/events/{made.event_id}"

    async with page_of(database) as page:
        hidden = (await page.get(path)).text + (await page.get("/api" + path)).text
    async with page_of(database, show_payload=True) as page:
        shown = (await page.get(path)).text + (await page.get("/api" + path)).text
    only_look = {"show_payload": True, "authorize": lambda _, action: action != "payload"}
    async with page_of(database, **only_look) as page:
        refused = (await page.get(path)).text + (await page.get("/api" + path)).text

    assert "visible" not in hidden + refused
    assert "person-5" not in hidden + refused
    assert "visible" in shown
    assert str(2**60 + 1) in shown
    assert f'"n":"{2**60 + 1}"' in shown
    assert "canary-1" not in hidden + shown + refused


async def test_links_follow_the_place_where_it_is_mounted(database: AsyncEngine) -> None:
    await record(database, event("a", "t.0"))
    await fail(database, "t.0")
    mounted = dashboard(database)
    inner = Starlette(routes=[Mount("/outbox", mounted)])

    async with living(mounted), client_of(Starlette(routes=[Mount("/ops", inner)])) as page:
        for path in SCREENS:
            shown = (await page.get("/ops/outbox" + path)).text
            links = re.findall(r'(?:href|src|action|hx-get|data-samples)="([^"]+)"', shown)
            assert links
            assert all(link.startswith(("/ops/outbox/", "#")) for link in links)
            for link in set(links) - {"#main"}:
                reached = await page.get(link.replace("&amp;", "&"))
                assert reached.status_code == 200, link
        form = {"expected": "1", "status": "failed"}
        done = await page.post("/ops/outbox/actions/retry", data=form, headers=SAME_SITE)

    assert done.headers["location"] == "/ops/outbox/audit"


async def test_unknown_things_are_not_found(database: AsyncEngine) -> None:
    async with page_of(database) as page:
        answers = [
            await page.get(path)
            for path in (f"/events/{uuid4()}", "/events/x", "/actions/purge", "/nothing")
        ]

    assert [answer.status_code for answer in answers] == [404] * 4
    assert "Not found" in answers[0].text


async def test_lost_database_is_said_without_details() -> None:
    from outrider.store.engines import open_engine

    engine = open_engine("postgresql://ada:canary-9@127.0.0.1:1/none")

    async with page_of(engine) as page:
        answer = await page.get("/")

    assert answer.status_code == 503
    assert "canary" not in answer.text
    await engine.dispose()


async def test_samples_are_taken_only_while_somebody_looks() -> None:
    looked = asyncio.Event()
    deliveries = iter(range(0, 1_000_000, 50))

    async def look() -> list[SinkSummary]:
        looked.set()
        return [
            SinkSummary(
                sink="s", pending=7, estimated=False, retrying=0, failed=0,
                oldest=timedelta(0), rate=0.0, last_delivery_number=next(deliveries),
            )
        ]  # fmt: skip

    sampler = Sampler(look, interval_s=0.001, idle_timeout_s=0.2)
    assert not looked.is_set()

    async with asyncio.timeout(30):
        while len((facts := sampler.series())["pending"]) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        while sampler.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert set(facts["pending"]) == {7}
    assert min(facts["rate"]) > 0


def test_scripts_of_others_are_the_ones_that_are_listed() -> None:
    listed = dict(
        re.findall(
            r"^\| `([\w.]+)` .*`(\w{64})` \|$", (STATIC / "VENDORED.md").read_text(), re.MULTILINE
        )
    )
    own = {"charts.js", "page.css"}
    found = {p.name for p in STATIC.iterdir() if p.suffix in (".js", ".css")} - own

    assert listed.keys() == found
    for name, expected in listed.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == expected


async def test_files_have_a_type_that_browsers_accept(database: AsyncEngine) -> None:
    async with page_of(database) as page:
        types = {
            path.name: (await page.get(f"/static/{path.name}")).headers["content-type"]
            for path in STATIC.iterdir()
            if path.suffix in (".js", ".css", ".svg")
        }

    assert all("javascript" in t or "css" in t or "svg" in t for t in types.values()), types

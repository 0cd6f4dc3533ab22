"""The messaging example over HTTP, on SQLite and on PostgreSQL: what is told, and what is not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.support.databases import DIALECTS, fresh
from tests.support.examples.messaging_client import (
    FUTURE,
    USER,
    Messaging,
    daily,
    group_message,
    scheduled_message,
)
from tests.support.examples.serving import MAX_WAIT_S, Application, fuzz, serving
from tests.support.until import wait_until

ENVELOPE = {"event_type", "aggregate_type", "aggregate_id", "timestamp", "user_id", "request_id"}
TRANSITION = {"id", "account_id", "status", "previous_status"}


@pytest.fixture(scope="module", params=DIALECTS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Application, Messaging]]:
    folder = tmp_path_factory.mktemp("messaging")
    with ExitStack() as stack:
        database = stack.enter_context(fresh(request.param, request, folder))
        environment = {"DATABASE_URL": database.url, "OUTBOX_NAME": "hermes"}
        application = stack.enter_context(serving("messaging", folder, environment))
        yield application, stack.enter_context(Messaging(application.url, database))


@pytest.fixture
def messaging(running: tuple[Application, Messaging]) -> Messaging:
    return running[1]


def told(messaging: Messaging, message: dict[str, Any]) -> list[str]:
    return [event.type.partition(".")[2] for event in messaging.events(message)]


def own(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload without what `flush` has added."""
    return {name: value for name, value in payload.items() if name not in ENVELOPE}


def test_every_payload_has_the_envelope_the_user_and_the_request(messaging: Messaging) -> None:
    # when
    answer = messaging.http.post(
        "/group-messages", json=group_message(), headers={"X-Request-ID": "req-7"}
    )

    # then
    (event,) = messaging.events(answer.json())
    assert event.payload.keys() >= ENVELOPE
    assert event.payload["event_type"] == "group_message.created"
    assert event.payload["aggregate_type"] == "group_message"
    assert event.payload["aggregate_id"] == answer.json()["id"]
    assert event.payload["user_id"] == USER
    assert event.payload["request_id"] == "req-7" == answer.headers["X-Request-ID"]
    assert event.payload["timestamp"].endswith("Z")


def test_created_group_message_is_told_with_all_its_facts(messaging: Messaging) -> None:
    # when
    sent = group_message(total_recipients=250, scheduled_at=FUTURE)
    message = messaging.create("group", sent)

    # then
    (event,) = messaging.events(message)
    assert event.type == "group_message.created"
    assert own(event.payload) == {**sent, "id": message["id"], "status": "draft"}


@pytest.mark.parametrize("path", [["queued"], ["cancelled"], ["queued", "cancelled"]])
def test_each_real_transition_of_a_group_message_is_told_once(
    messaging: Messaging, path: list[str]
) -> None:
    # given
    message = messaging.create("group", group_message())

    # when: every step is asked for twice
    for status in path:
        for _ in range(2):
            assert messaging.change("group", message, status=status)["status"] == status

    # then
    assert told(messaging, message) == ["created", *path]
    before = "draft"
    for event, status in zip(messaging.events(message)[1:], path, strict=True):
        assert own(event.payload) == {
            "id": message["id"],
            "account_id": message["account_id"],
            "status": status,
            "previous_status": before,
        }
        before = status


def test_change_of_a_group_message_without_another_state_is_told_to_nobody(
    messaging: Messaging,
) -> None:
    # given
    message = messaging.create("group", group_message())

    # when
    messaging.change("group", message)
    messaging.change("group", message, status="draft", total_recipients=7)
    changed = messaging.change("group", message, scheduled_at=FUTURE, template_id=str(uuid4()))

    # then
    assert (changed["total_recipients"], changed["scheduled_at"]) == (7, FUTURE)
    assert told(messaging, message) == ["created"]


def test_created_scheduled_message_is_told_with_all_its_facts(messaging: Messaging) -> None:
    # when
    sent = daily(send_type="group")
    message = messaging.create("scheduled", sent)

    # then
    (event,) = messaging.events(message)
    assert event.type == "scheduled_message.created"
    expected = {**sent, "id": message["id"], "status": "pending", "next_trigger_at": FUTURE}
    assert own(event.payload) == expected


def test_cancelled_and_paused_scheduled_messages_are_told(messaging: Messaging) -> None:
    # given
    message = messaging.create("scheduled", daily())

    # when
    paused = messaging.change("scheduled", message, status="paused")
    cancelled = messaging.change("scheduled", message, status="cancelled")

    # then
    assert paused["next_trigger_at"] is None
    assert cancelled["next_trigger_at"] is None
    assert told(messaging, message) == ["created", "paused", "cancelled"]
    moves = [own(event.payload) for event in messaging.events(message)[1:]]
    assert [(move["previous_status"], move["status"]) for move in moves] == [
        ("pending", "paused"),
        ("paused", "cancelled"),
    ]
    assert all(move.keys() == TRANSITION for move in moves)


def test_resumed_scheduled_message_is_told_with_its_next_trigger(messaging: Messaging) -> None:
    # given
    message = messaging.create("scheduled", daily())
    messaging.change("scheduled", message, status="paused")

    # when
    messaging.change("scheduled", message, status="pending")
    messaging.change("scheduled", message, status="pending")

    # then
    assert told(messaging, message) == ["created", "paused", "resumed"]
    payload = own(messaging.events(message)[-1].payload)
    assert payload.keys() == {*TRANSITION, "next_trigger_at"}
    assert (payload["previous_status"], payload["status"]) == ("paused", "pending")
    assert payload["next_trigger_at"] == FUTURE


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"scheduled_at": "2032-05-01T00:00:00Z"}, ["scheduled_at"]),
        ({"timezone": "Asia/Tokyo", "scheduled_at": FUTURE}, ["timezone"]),
        (
            {"is_recurring": False, "recurrence_rule": None},
            ["is_recurring", "recurrence_rule"],
        ),
        (
            {"recurrence_rule": "FREQ=WEEKLY", "recurrence_end_at": "2033-01-01T00:00:00Z"},
            ["recurrence_end_at", "recurrence_rule"],
        ),
    ],
)
def test_other_schedule_is_told_with_the_fields_that_changed(
    messaging: Messaging, changes: dict[str, Any], changed: list[str]
) -> None:
    # given
    message = messaging.create("scheduled", daily())

    # when: the same twice is one change
    messaging.change("scheduled", message, **changes)
    after = messaging.change("scheduled", message, **changes)

    # then
    assert told(messaging, message) == ["created", "updated"]
    payload = own(messaging.events(message)[-1].payload)
    fields = ("id", "account_id", "scheduled_at", "timezone", "is_recurring", "recurrence_rule")
    expected = {name: after[name] for name in (*fields, "next_trigger_at")}
    assert payload == {**expected, "changed_fields": changed}


def test_one_request_that_changes_status_and_schedule_records_the_change_of_status_alone(
    messaging: Messaging,
) -> None:
    # given
    message = messaging.create("scheduled", daily())

    # when
    messaging.change("scheduled", message, status="paused", timezone="Asia/Tokyo")
    later = "2032-07-01T07:00:00Z"
    after = messaging.change("scheduled", message, status="pending", scheduled_at=later)

    # then
    assert told(messaging, message) == ["created", "paused", "resumed"]
    *_, paused, resumed = messaging.events(message)
    assert own(paused.payload).keys() == TRANSITION
    assert own(resumed.payload).keys() == {*TRANSITION, "next_trigger_at"}
    assert (after["timezone"], after["scheduled_at"]) == ("Asia/Tokyo", later)
    assert resumed.payload["next_trigger_at"] == after["next_trigger_at"]


def test_other_schedule_beside_the_status_as_it_is_is_a_change_of_schedule(
    messaging: Messaging,
) -> None:
    # given
    message = messaging.create("scheduled", daily())

    # when
    messaging.change("scheduled", message, status="pending", timezone="Asia/Tokyo")

    # then
    assert told(messaging, message) == ["created", "updated"]
    assert messaging.events(message)[-1].payload["changed_fields"] == ["timezone"]


def test_next_trigger_is_at_the_local_time_of_the_message_in_summer_and_winter(
    messaging: Messaging,
) -> None:
    # given: nine in the morning in Berlin, first in winter
    yearly = "FREQ=YEARLY;BYMONTHDAY=1;BYMONTH="
    message = messaging.create("scheduled", daily(recurrence_rule=f"{yearly}2"))

    # when
    summer = messaging.change("scheduled", message, recurrence_rule=f"{yearly}7")

    # then
    assert message["next_trigger_at"] == "2031-02-01T08:00:00Z"
    assert summer["next_trigger_at"] == "2031-07-01T07:00:00Z"


@pytest.mark.parametrize(
    ("kind", "path", "reason"),
    [
        ("group", ["queued", "draft"], "a queued message cannot become draft"),
        ("group", ["cancelled", "queued"], "a cancelled message cannot become queued"),
        ("group", ["cancelled", "draft"], "a cancelled message cannot become draft"),
        ("scheduled", ["cancelled", "pending"], "a cancelled message cannot become pending"),
        ("scheduled", ["cancelled", "paused"], "a cancelled message cannot become paused"),
    ],
)
def test_impossible_transition_is_refused_with_a_reason_and_told_to_nobody(
    messaging: Messaging, kind: str, path: list[str], reason: str
) -> None:
    # given
    *possible, impossible = path
    body = group_message() if kind == "group" else daily()
    message = messaging.create(kind, body)
    for status in possible:
        messaging.change(kind, message, status=status)

    # when
    url = f"/{kind}-messages/{message['id']}"
    answer = messaging.http.patch(url, json={"status": impossible})

    # then
    assert (answer.status_code, answer.json()) == (409, {"detail": reason})
    assert messaging.http.get(url).json()["status"] == possible[-1]
    assert told(messaging, message) == ["created", *possible]


@pytest.mark.parametrize(
    ("kind", "status", "changes"),
    [
        ("group", "queued", {"total_recipients": 1}),
        ("group", "cancelled", {"template_id": str(uuid4())}),
        ("scheduled", "cancelled", {"timezone": "UTC"}),
    ],
)
def test_message_that_is_over_can_no_longer_be_changed(
    messaging: Messaging, kind: str, status: str, changes: dict[str, Any]
) -> None:
    # given
    message = messaging.create(kind, group_message() if kind == "group" else daily())
    messaging.change(kind, message, status=status)

    # when
    answer = messaging.http.patch(f"/{kind}-messages/{message['id']}", json=changes)

    # then
    assert answer.status_code == 409
    assert "can no longer be changed" in answer.json()["detail"]
    assert told(messaging, message) == ["created", status]


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("group", {}, "Field required"),
        ("group", group_message(account_id="7"), "valid UUID"),
        ("group", group_message(contact_group_ids=["7"]), "should match pattern"),
        ("group", group_message(contact_group_ids=[]), "at least 1 item"),
        ("group", group_message(total_recipients=10**12), "less than or equal"),
        ("group", group_message(colour="red"), "Extra inputs"),
        ("group", group_message(scheduled_at="soon"), "valid datetime"),
        ("scheduled", scheduled_message(scheduled_at="2031-01-01T09:00:00"), "timezone info"),
        ("scheduled", scheduled_message(scheduled_at="2020-01-01T00:00:00Z"), "in the future"),
        ("scheduled", scheduled_message(scheduled_at="9999-12-31T23:59:59-14:00"), "years"),
        ("scheduled", scheduled_message(timezone="Berlin"), "no such time zone"),
        ("scheduled", scheduled_message(timezone="\x00"), "no such time zone"),
        ("scheduled", scheduled_message(is_recurring=True), "has a recurrence_rule"),
        ("scheduled", scheduled_message(recurrence_rule="FREQ=DAILY"), "has a recurrence_rule"),
        ("scheduled", daily(recurrence_rule="FREQ=SECONDLY"), "FREQ is one of"),
        ("scheduled", daily(recurrence_rule="FREQ=DAILY;INTERVAL=0"), "INTERVAL has a value"),
        ("scheduled", daily(recurrence_end_at="2026-01-01T00:00:00Z"), "in the future"),
        ("scheduled", daily(recurrence_rule="FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"), "future"),
        ("scheduled", scheduled_message(send_type="pigeon"), "'single' or 'group'"),
    ],
)
def test_wrong_message_is_refused_with_a_reason_and_leaves_nothing(
    messaging: Messaging, kind: str, body: dict[str, Any], reason: str
) -> None:
    # given
    before = len(messaging.events())

    # when
    answer = messaging.http.post(f"/{kind}-messages", json=body)

    # then
    assert answer.status_code == 422
    assert reason in str(answer.json()["detail"])
    assert len(messaging.events()) == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "asleep"}, "'pending', 'paused' or 'cancelled'"),
        ({"status": None}, "'pending', 'paused' or 'cancelled'"),
        ({"timezone": None}, "valid string"),
        ({"recurrence_rule": None}, "has a recurrence_rule"),
        ({"timezone": "Mars/Base"}, "no such time zone"),
        (
            {"scheduled_at": "2010-01-01T00:00:00Z", "recurrence_rule": "FREQ=DAILY;COUNT=2"},
            "future",
        ),
        ({"next_trigger_at": FUTURE}, "Extra inputs"),
    ],
)
def test_wrong_change_is_refused_with_a_reason_and_leaves_all_as_it_was(
    messaging: Messaging, changes: dict[str, Any], reason: str
) -> None:
    # given
    message = messaging.create("scheduled", daily())
    url = f"/scheduled-messages/{message['id']}"

    # when
    answer = messaging.http.patch(url, json=changes)

    # then
    assert answer.status_code == 422
    assert reason in str(answer.json()["detail"])
    assert messaging.http.get(url).json() == message
    assert told(messaging, message) == ["created"]


def test_message_whose_time_passed_while_it_was_paused_needs_another_one(
    messaging: Messaging,
) -> None:
    # given
    message = messaging.create("scheduled", scheduled_message())
    messaging.change("scheduled", message, status="paused")
    messaging.change("scheduled", message, scheduled_at="2020-01-01T00:00:00Z")

    # when
    url = f"/scheduled-messages/{message['id']}"
    refused = messaging.http.patch(url, json={"status": "pending"})
    messaging.change("scheduled", message, status="pending", scheduled_at=FUTURE)

    # then
    assert refused.status_code == 422
    assert "in the future" in refused.text
    assert told(messaging, message) == ["created", "paused", "updated", "resumed"]


@pytest.mark.parametrize("kind", ["group", "scheduled"])
def test_unknown_message_is_not_found_and_a_bad_id_is_refused(
    messaging: Messaging, kind: str
) -> None:
    for method in ("GET", "PATCH"):
        body = {"json": {}} if method == "PATCH" else {}
        unknown = messaging.http.request(method, f"/{kind}-messages/{uuid4()}", **body)
        bad = messaging.http.request(method, f"/{kind}-messages/7", **body)

        assert (unknown.status_code, unknown.json()["detail"]) == (404, "there is no such message")
        assert bad.status_code == 422
        assert "valid UUID" in bad.text


@pytest.mark.parametrize("headers", [{}, {"X-User-ID": "somebody"}])
def test_request_that_changes_something_needs_a_user(
    messaging: Messaging, headers: dict[str, str]
) -> None:
    answer = httpx.post(f"{messaging.url}/group-messages", json=group_message(), headers=headers)

    assert answer.status_code == 422
    assert "X-User-ID" in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"total_recipients": NaN}',
        b'{"total_recipients": 1e999}',
        b'{"\\ud800": "\\udfff"}',
        b'{"timezone": "\\ud800", "scheduled_at": Infinity}',
        b"[" * 100_000,
        b'{"total_recipients": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_body_that_is_no_message_is_refused_whatever_it_is(
    messaging: Messaging, body: bytes
) -> None:
    for kind in ("group", "scheduled"):
        headers = {"Content-Type": "application/json"}
        answer = messaging.http.post(f"/{kind}-messages", content=body, headers=headers)

        assert answer.status_code in (400, 422)
        assert answer.json()["detail"]


def test_list_has_the_newest_first_in_pages_and_by_account(messaging: Messaging) -> None:
    # given
    account = str(uuid4())
    made = [messaging.create("group", group_message(account_id=account)) for _ in range(3)]

    # when
    pages = [
        messaging.http.get(
            "/group-messages", params={"account_id": account, "limit": 2, "offset": offset}
        ).json()
        for offset in (0, 2)
    ]

    # then
    assert pages == [[made[2], made[1]], [made[0]]]


def test_concurrent_changes_of_one_message_are_told_in_the_order_of_their_commits(
    messaging: Messaging,
) -> None:
    # given
    message = messaging.create("scheduled", daily())
    url = f"/scheduled-messages/{message['id']}"

    # when: many clients switch it on and off at once
    def switch(status: str) -> int:
        return messaging.http.patch(url, json={"status": status}).status_code

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(switch, ["paused", "pending"] * 40))

    # then: each event begins where the one before it has ended, and the last is the truth
    assert set(answers) == {200}
    moves = [event.payload for event in messaging.events(message)[1:]]
    assert moves
    assert moves[0]["previous_status"] == "pending"
    for earlier, later in pairwise(moves):
        assert later["previous_status"] == earlier["status"]
    assert moves[-1]["status"] == messaging.http.get(url).json()["status"]


def test_events_of_concurrent_requests_stay_apart(messaging: Messaging) -> None:
    # when
    def create(number: int) -> dict[str, Any]:
        headers = {"X-Request-ID": f"req-{number}", "X-User-ID": str(UUID(int=number))}
        answer = messaging.http.post("/group-messages", json=group_message(), headers=headers)
        return dict(answer.json())

    with ThreadPoolExecutor(8) as clients:
        messages = list(clients.map(create, range(24)))

    # then
    for number, message in enumerate(messages):
        (event,) = messaging.events(message)
        assert event.payload["request_id"] == f"req-{number}"
        assert event.payload["user_id"] == str(UUID(int=number))


def test_without_a_broker_events_reach_the_handler_of_the_process_in_order(
    running: tuple[Application, Messaging],
) -> None:
    # given
    application, messaging = running
    message = messaging.create("group", group_message())
    for status in ("queued", "cancelled"):
        messaging.change("group", message, status=status)

    # when
    def processed() -> list[str]:
        seen = messaging.http.get("/processed").json()
        return [each["event_type"] for each in seen if each["aggregate_id"] == message["id"]]

    assert wait_until(lambda: len(processed()) == 3, MAX_WAIT_S)

    # then
    assert processed() == [f"group_message.{what}" for what in ("created", "queued", "cancelled")]
    assert wait_until(
        lambda: all(event.status == "published" for event in messaging.events(message)), MAX_WAIT_S
    )
    assert USER not in application.log
    assert message["account_id"] not in application.log


def test_settings_of_a_relay_count_in_one_process_too(
    running: tuple[Application, Messaging],
) -> None:
    application, _ = running

    assert "relay hermes started: " in application.log


def test_first_lines_say_where_it_is_and_what_to_try(
    running: tuple[Application, Messaging],
) -> None:
    # given
    application, messaging = running
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = application.log.split("Try in another terminal:")[1].split("INFO")[0]

    # when
    done = subprocess.run(["sh", "-ec", lines], capture_output=True, text=True, check=True)

    # then
    assert application.url in lines
    assert '"status":"draft"' in done.stdout
    assert "group_message.created" in [event.type for event in messaging.events()]


def test_nothing_that_is_sent_makes_the_application_fail(
    running: tuple[Application, Messaging],
) -> None:
    application, _ = running

    assert fuzz(application.url) == ""
    assert "Traceback" not in application.log

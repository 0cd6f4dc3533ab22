"""The accounts example over HTTP, on SQLite and on PostgreSQL: an account here, a profile there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from tests.support.databases import DIALECTS, fresh
from tests.support.examples.accounts_client import Accounts, count, event_of, events_in, person
from tests.support.examples.serving import MAX_WAIT_S, Application, fuzz, serving
from tests.support.until import wait_until

# Whatever happens in these tests happens because a commit has woken the relay up.
NEVER_POLLS = {"OUTBOX_POLL_INTERVAL": "3600"}


@pytest.fixture(scope="module", params=DIALECTS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Application, Accounts]]:
    folder = tmp_path_factory.mktemp("accounts")
    with ExitStack() as stack:
        database = stack.enter_context(fresh(request.param, request, folder))
        environment = {"DATABASE_URL": database.url, **NEVER_POLLS}
        application = stack.enter_context(serving("accounts", folder, environment))
        yield application, stack.enter_context(Accounts(application.url, database))


@pytest.fixture
def accounts(running: tuple[Application, Accounts]) -> Accounts:
    return running[1]


def test_sign_up_leads_to_a_profile_long_before_the_poll(accounts: Accounts) -> None:
    # when
    answer = accounts.http.post(
        "/accounts", json={"email": "Grace@Example.org", "display_name": " Grace Hopper "}
    )

    # then
    assert answer.status_code == 201
    account = answer.json()
    assert account == {"id": account["id"], "email": "grace@example.org", "role": "user"}
    assert accounts.http.get(f"/accounts/{account['id']}").json() == account
    assert accounts.has_profile(account["id"])
    expected = {"account_id": account["id"], "display_name": "Grace Hopper"}
    assert accounts.profile(account["id"]) == expected
    assert accounts.became(account["id"], "published")
    assert event_of(accounts.database, account["id"]).type == "AccountCreated"


def test_each_of_many_who_sign_up_at_once_gets_one_profile(accounts: Accounts) -> None:
    # given
    before = count(accounts.database, "profiles"), count(accounts.database, "processed_events")

    # when
    with ThreadPoolExecutor(8) as people:
        ids = list(
            people.map(lambda number: accounts.sign_up(display_name=f"P{number}"), range(40))
        )

    # then: one profile each, and each of two handlers has dealt with each event
    assert all(accounts.became(account_id, "published") for account_id in ids)
    for number, account_id in enumerate(ids):
        assert accounts.profile(account_id) == {
            "account_id": account_id,
            "display_name": f"P{number}",
        }
    after = count(accounts.database, "profiles"), count(accounts.database, "processed_events")
    assert after == (before[0] + 40, before[1] + 80)


def test_address_that_is_taken_is_refused_with_a_reason_and_told_to_nobody(
    accounts: Accounts,
) -> None:
    # given
    accounts.sign_up(email="taken@example.org")
    before = len(events_in(accounts.database))

    # when
    answer = accounts.http.post("/accounts", json=person(email="TAKEN@example.org"))

    # then
    assert answer.status_code == 409
    assert answer.json() == {"detail": "there is an account with this e-mail address"}
    assert len(events_in(accounts.database)) == before


def test_of_many_who_want_one_address_at_once_one_gets_it(accounts: Accounts) -> None:
    # given
    wanted = person(email="wanted@example.org")
    before = count(accounts.database, "accounts"), len(events_in(accounts.database))

    # when
    with ThreadPoolExecutor(8) as people:
        answers = people.map(lambda _: accounts.http.post("/accounts", json=wanted), range(8))

    # then
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    after = count(accounts.database, "accounts"), len(events_in(accounts.database))
    assert after == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Field required"),
        (person(email="nobody"), "should match pattern"),
        (person(email="a@b@c"), "should match pattern"),
        (person(email="a b@example.org"), "should match pattern"),
        (person(email="ä@example.org"), "should match pattern"),
        (person(email="a" * 250 + "@example.org"), "at most 254"),
        (person(display_name=" "), "at least 1"),
        (person(display_name="x" * 101), "at most 100"),
        (person(display_name="a\x00b"), "should match pattern"),
        (person(display_name="a\nb"), "should match pattern"),
        (person(display_name=None), "valid string"),
        (person(role="admin"), "Extra inputs"),
    ],
)
def test_wrong_sign_up_is_refused_with_a_reason_and_leaves_nothing(
    accounts: Accounts, body: dict[str, Any], reason: str
) -> None:
    # given
    before = count(accounts.database, "accounts"), len(events_in(accounts.database))

    # when
    answer = accounts.http.post("/accounts", json=body)

    # then
    assert answer.status_code == 422
    assert reason in str(answer.json()["detail"])
    assert (count(accounts.database, "accounts"), len(events_in(accounts.database))) == before


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"email": "\\ud800@\\udfff"}', b"[" * 100_000],
    ids=lambda body: repr(body[:30]),
)
def test_body_that_is_no_sign_up_is_refused_whatever_it_is(accounts: Accounts, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}

    answer = accounts.http.post("/accounts", content=body, headers=headers)

    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


@pytest.mark.parametrize("what", ["account", "profile"])
def test_unknown_id_is_not_found_and_a_bad_one_is_refused(accounts: Accounts, what: str) -> None:
    unknown = accounts.http.get(f"/{what}s/{uuid4()}")
    bad = accounts.http.get(f"/{what}s/7")

    assert unknown.status_code == 404
    assert f"there is no such {what}" in unknown.json()["detail"]
    assert bad.status_code == 422
    assert "valid UUID" in bad.text


def test_log_follows_a_request_by_its_id_and_names_nobody(
    running: tuple[Application, Accounts],
) -> None:
    # given
    application, accounts = running
    body = person(email="canary-mail@example.org", display_name="canary-name")

    # when
    headers = {"X-Request-ID": f"req-{uuid4()}"}
    account_id = accounts.http.post("/accounts", json=body, headers=headers).json()["id"]
    assert accounts.became(account_id, "published")

    # then: one line of each handler and one of the relay carry the request's id
    def lines() -> list[str]:
        return [line for line in application.log.splitlines() if headers["X-Request-ID"] in line]

    assert wait_until(lambda: len(lines()) == 3, MAX_WAIT_S)
    event_id = event_of(accounts.database, account_id).id
    assert all(f"event_id={event_id} event_type=AccountCreated" in line for line in lines())
    assert f"account {account_id} was created" in application.log
    assert "canary" not in application.log


def test_first_lines_say_where_it_is_and_what_to_try(
    running: tuple[Application, Accounts],
) -> None:
    # given
    application, accounts = running
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = application.log.split("Try in another terminal:")[1].split("INFO")[0]
    before = len(events_in(accounts.database))

    # when
    done = subprocess.run(["sh", "-ec", lines], capture_output=True, text=True, check=True)

    # then
    assert application.url in lines
    assert '"email":"ada@example.org"' in done.stdout
    assert done.stdout.endswith("[]")
    assert len(events_in(accounts.database)) == before + 1


def test_nothing_that_is_sent_makes_the_application_fail(
    running: tuple[Application, Accounts],
) -> None:
    application, accounts = running

    assert fuzz(application.url) == ""
    assert "Traceback" not in application.log
    assert wait_until(
        lambda: all(event.status == "published" for event in events_in(accounts.database)),
        MAX_WAIT_S,
    )

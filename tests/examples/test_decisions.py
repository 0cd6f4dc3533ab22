"""The decisions example over HTTP, on SQLite and on PostgreSQL, with the dashboard in-process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text

from tests.support.databases import DIALECTS, fresh
from tests.support.examples.decisions_stage import Decisions
from tests.support.examples.serving import MAX_WAIT_S, Application, fuzz, serving
from tests.support.until import wait_until

NO_REDIS = "redis://127.0.0.1:9"


@pytest.fixture(scope="module", params=DIALECTS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Application, Decisions]]:
    folder = tmp_path_factory.mktemp("decisions")
    with ExitStack() as stack:
        database = stack.enter_context(fresh(request.param, request, folder))
        environment = {"DATABASE_URL": database.url}
        application = stack.enter_context(serving("decisions", folder, environment))
        yield application, Decisions(application.url, database)


@pytest.fixture
def decisions(running: tuple[Application, Decisions]) -> Iterator[Decisions]:
    """Another user for each test."""
    application, shared = running
    made = Decisions(application.url, shared.database)
    with made.http:
        yield made


def told(decisions: Decisions, session_id: str) -> list[str]:
    rows = decisions.database.run("SELECT aggregate_id, event_type FROM outbox ORDER BY position")
    return [event_type for aggregate_id, event_type in rows if aggregate_id == session_id]


def test_created_session_is_saved_with_its_event_and_shown_on_the_dashboard(
    decisions: Decisions,
) -> None:
    # when
    session = decisions.create("  Move to the sea?  ")

    # then
    (found,) = decisions.sessions()
    assert (found["id"], found["title"], found["archived"]) == (session, "Move to the sea?", False)
    assert told(decisions, session) == ["session.created"]
    decisions.until_shown(session, ("Move to the sea?", False, 1))


def test_every_change_is_told_once_and_no_change_is_not_told(decisions: Decisions) -> None:
    # given
    session = decisions.create("Move?")

    # when
    for changes in (
        {"title": "Move?"},
        {"title": "Stay?"},
        {},
        {"title": None, "archived": None},
        {"title": "Go?", "archived": True},
        {"archived": True},
        {"title": "Go?"},
    ):
        assert decisions.change(session, **changes).status_code == 200

    # then
    expected = ["session.created", "session.renamed", "session.renamed", "session.archived"]
    assert told(decisions, session) == expected
    decisions.until_shown(session, ("Go?", True, 4))


def test_archived_session_keeps_its_title(decisions: Decisions) -> None:
    # given
    session = decisions.create("Move?")
    decisions.change(session, archived=True)

    # when
    refused = decisions.change(session, title="Stay?")

    # then
    assert refused.status_code == 409
    assert "archived" in refused.json()["detail"]
    assert decisions.sessions()[0]["title"] == "Move?"
    assert told(decisions, session) == ["session.created", "session.archived"]


def test_nobody_sees_or_changes_the_sessions_of_others(
    running: tuple[Application, Decisions], decisions: Decisions
) -> None:
    # given
    session = decisions.create("Move?")
    decisions.until_shown(session, ("Move?", False, 1))
    stranger = Decisions(running[0].url, decisions.database)

    # when
    with stranger.http:
        answers = [stranger.change(session, title="Mine"), stranger.change(str(uuid4()))]
        seen = (stranger.sessions(), stranger.dashboard())

    # then
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json() == answers[1].json()
    assert seen == ([], {})
    assert told(decisions, session) == ["session.created"]


def test_event_carries_the_user_and_the_request(decisions: Decisions) -> None:
    # when
    session = decisions.create("Move?", **{"X-Request-ID": "request-7"})

    # then
    rows = decisions.database.run("SELECT aggregate_id, payload, metadata FROM outbox")
    (stored,) = [row for row in rows if row.aggregate_id == session]
    payload, metadata = (
        json.loads(column) if isinstance(column, str) else column for column in stored[1:]
    )
    assert metadata == {"correlation_id": "request-7", "user_id": decisions.user_id}
    assert payload["user_id"] == decisions.user_id
    assert payload["title"] == "Move?"


@pytest.mark.parametrize("user_id", [None, "", "two words", "x" * 65, "'; --"])
def test_request_without_a_usable_user_is_refused_with_a_reason(
    decisions: Decisions, user_id: str | None
) -> None:
    del decisions.http.headers["X-User-ID"]
    headers = {} if user_id is None else {"X-User-ID": user_id}

    answer = decisions.http.post("/sessions", json={"title": "Move?"}, headers=headers)

    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["header", "X-User-ID"]


@pytest.mark.parametrize("title", ["", "  ", "x" * 201, "a\u0000b", "\ud800", None, 7])
def test_title_that_is_none_is_refused_with_a_reason(decisions: Decisions, title: object) -> None:
    answer = decisions.http.post(
        "/sessions",
        content=json.dumps({"title": title}),
        headers={"content-type": "application/json"},
    )

    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert decisions.sessions() == []


def test_changes_at_the_same_time_are_told_in_the_order_in_which_they_were_made(
    decisions: Decisions,
) -> None:
    # given
    session = decisions.create("0")

    # when
    with ThreadPoolExecutor(4) as clients:
        renamed = clients.map(lambda n: decisions.change(session, title=str(n)), range(1, 21))
        assert {answer.status_code for answer in renamed} == {200}

    # then: the last event told the dashboard the same as the last change told the session
    (found,) = decisions.sessions()
    decisions.until_shown(session, (found["title"], False, 21))


def test_title_stays_though_the_session_is_archived_at_the_same_moment(
    decisions: Decisions,
) -> None:
    # given: somebody is about to archive it
    if decisions.database.dialect == "sqlite":
        pytest.skip("SQLite has one transaction at a time")
    session = decisions.create("Move?")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
    waiting += "datname = current_database()"
    archive = text("UPDATE decision_sessions SET archived = true WHERE id = :id")
    with ThreadPoolExecutor(1) as client, decisions.database.engine().begin() as connection:
        connection.execute(archive, {"id": session})

        # when
        answer = client.submit(decisions.change, session, title="Stay?")
        assert wait_until(lambda: decisions.database.run(waiting) == [(1,)], MAX_WAIT_S)
        connection.commit()

        # then
        assert answer.result(MAX_WAIT_S).status_code == 409
    assert told(decisions, session) == ["session.created"]


def test_audit_lines_carry_the_correlation_id_and_nothing_private(
    running: tuple[Application, Decisions], decisions: Decisions
) -> None:
    # given
    application, _ = running
    title, request = f"title-{secrets.token_hex(8)}", f"request-{secrets.token_hex(8)}"

    # when
    session = decisions.create(title, **{"X-Request-ID": request})
    decisions.until_shown(session, (title, False, 1))

    # then
    def lines() -> list[str]:
        return [line for line in application.log.splitlines() if request in line]

    assert wait_until(lambda: len(lines()) == 2, MAX_WAIT_S), application.log
    handled, published = lines()
    assert handled.startswith("INFO outrider.audit event handled ")
    assert published.startswith("INFO outrider.audit event published ")
    for line in (handled, published):
        assert f"correlation_id={request}" in line
        assert "event_type=session.created" in line
        assert "event_id=" in line
    assert title not in application.log
    assert decisions.user_id not in application.log


@pytest.mark.parametrize("table", ["decision_sessions", "outbox"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_session_and_event_are_saved_together_or_not_at_all(
    dialect: str, table: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        # given: one of the two cannot be written
        database = stack.enter_context(fresh(dialect, request, tmp_path))
        environment = {"DATABASE_URL": database.url, "REDIS_URL": NO_REDIS}
        application = stack.enter_context(serving("decisions", tmp_path, environment))
        decisions = Decisions(application.url, database)
        stack.enter_context(decisions.http)
        kept = decisions.create("kept")
        database.run(f"ALTER TABLE {table} RENAME TO away")

        # when
        # Uvicorn hangs up after an error, so the next request needs a connection of its own.
        own = {"Connection": "close"}
        failed = decisions.http.post("/sessions", json={"title": "canary-1f"}, headers=own)
        database.run(f"ALTER TABLE away RENAME TO {table}")

        # then
        assert failed.status_code == 500
        assert [session["id"] for session in decisions.sessions()] == [kept]
        assert decisions.events() == [("session.created", "pending")]
        assert "canary-1f" not in application.log
        assert decisions.user_id not in application.log

        # and the next one is saved
        decisions.create("next")
        assert [event for event, _ in decisions.events()] == ["session.created"] * 2


def test_no_request_that_schemathesis_can_think_of_breaks_it(
    running: tuple[Application, Decisions],
) -> None:
    application, _ = running

    assert fuzz(application.url) == ""
    assert "Traceback" not in application.log

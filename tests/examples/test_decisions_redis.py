"""The decisions example on PostgreSQL and Redis, with relay and consumer as processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from examples.decisions.events import SessionArchived, SessionCreated, SessionRenamed
from outrider import EventMetadata
from outrider.testing.services import Services
from tests.support.databases import fresh_postgres
from tests.support.examples.decisions_stage import CONSUMER, Backstage, Decisions
from tests.support.examples.serving import MAX_WAIT_S, serving
from tests.support.until import wait_until

CRASHES = "tests.support.examples.decisions_crash"


@pytest.fixture
def stage(services: Services, tmp_path: Path) -> Iterator[tuple[Decisions, Backstage]]:
    with ExitStack() as stack:
        database = stack.enter_context(fresh_postgres(services))
        backstage = Backstage(database, services.redis.url, tmp_path)
        backstage.forget()
        environment = {"DATABASE_URL": database.url, "REDIS_URL": services.redis.url}
        application = stack.enter_context(serving("decisions", tmp_path, environment))
        decisions = Decisions(application.url, database)
        stack.enter_context(decisions.http)
        yield decisions, backstage


def test_events_reach_the_dashboard_through_redis_in_their_order(
    stage: tuple[Decisions, Backstage],
) -> None:
    # given
    decisions, backstage = stage
    session = decisions.create("Move?")
    assert (decisions.dashboard(), decisions.events()) == ({}, [("session.created", "pending")])

    # when
    with backstage.relay(), backstage.consumer():
        decisions.change(session, title="Move to the sea?")
        decisions.change(session, archived=True)

        # then
        decisions.until_shown(session, ("Move to the sea?", True, 3))
        assert [event for event, _ in decisions.events()] == [
            "session.created",
            "session.renamed",
            "session.archived",
        ]
        assert decisions.marks() == ["show_session", "show_title", "show_archived"]


def test_second_delivery_is_skipped(stage: tuple[Decisions, Backstage]) -> None:
    # given
    decisions, backstage = stage
    session = decisions.create("Move?")
    decisions.change(session, title="Stay?")
    with backstage.relay(), backstage.consumer():
        decisions.until_shown(session, ("Stay?", False, 2))

        # when
        backstage.deliver_again()
        backstage.until_handled(4)

        # then
        assert decisions.dashboard() == {session: ("Stay?", False, 2)}
        assert decisions.marks() == ["show_session", "show_title"]
        assert backstage.letters() == []


@pytest.mark.parametrize(
    "moment", ["before_the_commit", "after_the_commit", "before_the_acknowledgement"]
)
def test_effect_and_mark_commit_together_though_the_consumer_is_killed(
    stage: tuple[Decisions, Backstage], moment: str
) -> None:
    # given
    decisions, backstage = stage
    session = decisions.create("Move?")
    with backstage.relay(), backstage.consumer(f"{CRASHES}:{moment}") as killed:
        assert wait_until(lambda: not killed.is_alive, MAX_WAIT_S), killed.text
        assert killed.exit_code == -9
        effects = len(decisions.dashboard())
        assert effects == len(decisions.marks()) == (moment != "before_the_commit")

        # when
        with backstage.consumer():
            backstage.until_handled(1)

            # then
            assert decisions.dashboard() == {session: ("Move?", False, 1)}
            assert decisions.marks() == ["show_session"]


def test_events_of_nobody_or_of_somebody_else_are_set_aside_and_not_marked(
    stage: tuple[Decisions, Backstage],
) -> None:
    # given
    decisions, backstage = stage
    session = decisions.create("Move?")
    canary = f"secret-{uuid4().hex}"
    own, others = EventMetadata(user_id=decisions.user_id), EventMetadata(user_id="mallory")
    forged = [
        SessionRenamed(session_id=UUID(session), title=canary).to_envelope(),
        SessionArchived(session_id=UUID(session)).to_envelope(others),
        SessionCreated(session_id=uuid4(), user_id=decisions.user_id, title=canary).to_envelope(),
        SessionCreated(session_id=uuid4(), user_id=canary, title="x").to_envelope(own),
        SessionArchived(session_id=uuid4()).to_envelope(own),
    ]

    # when
    with backstage.relay(), backstage.consumer():
        decisions.until_shown(session, ("Move?", False, 1))
        backstage.send(*forged)
        assert wait_until(lambda: len(backstage.letters()) == len(forged), MAX_WAIT_S)
        decisions.change(session, title="Stay?")

        # then: what comes behind goes on
        decisions.until_shown(session, ("Stay?", False, 2))
        assert decisions.dashboard().keys() == {session}
        assert decisions.marks() == ["show_session", "show_title"]
        letters = backstage.letters()
        assert {letter["ce-id"] for letter in letters} == {str(e.event_id) for e in forged}
        assert all(": NotAuthorized at " in letter["dead-letter-reason"] for letter in letters)
    assert "message moved to the dead letters" in backstage.said
    assert canary not in backstage.said
    assert "mallory" not in backstage.said
    assert decisions.user_id not in backstage.said


def test_requests_go_on_while_redis_is_down_and_the_dashboard_catches_up(
    services: Services, stage: tuple[Decisions, Backstage]
) -> None:
    # given
    decisions, backstage = stage
    server = services.another("redis")
    backstage.redis_url = server.url
    with backstage.relay() as relay, backstage.consumer():
        session = decisions.create("Move?")
        decisions.until_shown(session, ("Move?", False, 1))
        server.kill()

        # when
        decisions.change(session, title="Stay?")
        other = decisions.create("Paint the house?")
        assert wait_until(lambda: "sink unavailable" in relay.text, MAX_WAIT_S), relay.text
        assert decisions.dashboard() == {session: ("Move?", False, 1)}
        server.start()

        # then
        decisions.until_shown(session, ("Stay?", False, 2))
        decisions.until_shown(other, ("Paint the house?", False, 1))
    server.stop()


def test_relay_and_consumer_leave_audit_lines_with_the_correlation_id_and_nothing_private(
    stage: tuple[Decisions, Backstage],
) -> None:
    # given
    decisions, backstage = stage
    title, request = f"title-{uuid4().hex}", f"request-{uuid4().hex}"

    # when
    with backstage.relay() as relay, backstage.consumer() as consumer:
        session = decisions.create(title, **{"X-Request-ID": request})
        decisions.until_shown(session, (title, False, 1))
        backstage.until_handled(1)
        handled = f"correlation_id={request}"
        assert wait_until(lambda: handled in relay.text and handled in consumer.text, MAX_WAIT_S)

    # then
    for process, happened in ((relay, "event published"), (consumer, "event handled")):
        (line,) = [line for line in process.text.splitlines() if request in line]
        assert f"INFO outrider.audit {happened}" in line
        assert "event_type=session.created" in line
        assert "event_id=" in line
        assert title not in process.text
        assert decisions.user_id not in process.text


def test_consumer_without_a_redis_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "consume", CONSUMER],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr == ("Error: REDIS_URL is not set, so the API's own process does the work\n")

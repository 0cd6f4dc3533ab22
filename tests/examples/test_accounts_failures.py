"""The accounts example in trouble: handlers that fail, deliveries that repeat, a killed process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.databases import DIALECTS, Database, fresh
from tests.support.examples.accounts_client import Accounts, count, event_of
from tests.support.examples.serving import MAX_WAIT_S, Application, serving
from tests.support.until import wait_until

# Other processes cannot wake a relay on SQLite up, and a dead one's lanes are soon free.
QUICK = {"OUTBOX_POLL_INTERVAL_MS": "200", "OUTBOX_LEASE": "2"}
REFUSE_MALLORY = {
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON profiles FOR EACH ROW "
        "WHEN (NEW.display_name = 'Mallory') EXECUTE FUNCTION refuse()",
    ),
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE INSERT ON profiles WHEN NEW.display_name = 'Mallory' "
        "BEGIN SELECT RAISE(ABORT, 'not today'); END",
    ),
}
# Statements that never end: what comes after them is still to be done when the process dies.
STUCK = {
    "postgresql": (
        "CREATE FUNCTION stuck() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$",
        "CREATE TRIGGER stuck BEFORE {moment} FOR EACH ROW EXECUTE FUNCTION stuck()",
    ),
    "sqlite": (
        "CREATE VIEW endless AS WITH RECURSIVE numbers(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT n FROM numbers",
        "CREATE TRIGGER stuck BEFORE {moment} BEGIN SELECT count(*) FROM endless; END",
    ),
}


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        yield database


@contextmanager
def running(
    database: Database, folder: Path, **environment: str
) -> Iterator[tuple[Application, Accounts]]:
    with ExitStack() as stack:
        settings = {"DATABASE_URL": database.url, **QUICK, **environment}
        application = stack.enter_context(serving("accounts", folder, settings))
        yield application, stack.enter_context(Accounts(application.url, database))


def outrider(database: Database, *arguments: str) -> None:
    """What a person types."""
    command = [sys.executable, "-m", "outrider", *arguments, "--database", database.url, "--yes"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def lines_of(application: Application, *words: str) -> list[str]:
    return [line for line in application.log.splitlines() if all(word in line for word in words)]


def test_failing_handler_raises_the_retry_count_while_all_others_go_on(
    database: Database, tmp_path: Path
) -> None:
    with running(database, tmp_path) as (application, accounts):
        # given
        database.run(*REFUSE_MALLORY[database.dialect])

        # when: three attempts follow at once, the one after that comes in half a minute
        mallory = accounts.sign_up(display_name="Mallory")
        assert wait_until(lambda: event_of(database, mallory).retry_count == 4, MAX_WAIT_S)
        ada = accounts.sign_up(display_name="Ada")

        # then
        assert accounts.has_profile(ada)
        assert accounts.became(ada, "published")
        event = event_of(database, mallory)
        assert event.status == "pending"
        assert "CreateProfileOnAccountCreated" in str(event.last_error)
        assert accounts.profile(mallory) is None
        failures = lines_of(application, "WARNING", "handler failed", event.id)
        assert len(failures) == 4
        assert all("CreateProfileOnAccountCreated" in line for line in failures)
        assert len(lines_of(application, f"account {mallory} was created")) == 1
        assert lines_of(application, "CRITICAL") == []


def test_event_at_its_limit_is_left_for_people_with_one_critical_line(
    database: Database, tmp_path: Path
) -> None:
    with running(database, tmp_path, OUTBOX_MAX_RETRIES="3") as (application, accounts):
        # given
        database.run(*REFUSE_MALLORY[database.dialect])

        # when
        mallory = accounts.sign_up(display_name="Mallory")
        assert accounts.became(mallory, "failed")
        assert accounts.has_profile(accounts.sign_up(display_name="Ada"))

        # then
        event = event_of(database, mallory)
        assert event.retry_count == 3
        assert len(lines_of(application, "CRITICAL")) == 1
        assert len(lines_of(application, "CRITICAL", f"event_id={event.id}", "attempt=3")) == 1
        (told,) = accounts.http.get("/failed-events").json()
        assert told == {
            "id": event.id,
            "event_type": "AccountCreated",
            "aggregate_id": mallory,
            "retry_count": 3,
            "last_error": event.last_error,
        }
        assert "not today" not in application.log + json.dumps(told)

        # and a person who has removed the cause sends it again; the other handler stays alone
        database.run(_drop("refuse", "profiles", database))
        outrider(database, "retry", event.id)
        assert accounts.has_profile(mallory)
        assert accounts.became(mallory, "published")
        assert accounts.http.get("/failed-events").json() == []
        assert len(lines_of(application, f"account {mallory} was created")) == 1


def test_event_that_is_delivered_twice_leaves_one_profile(
    database: Database, tmp_path: Path
) -> None:
    with running(database, tmp_path) as (application, accounts):
        # given
        account_id = accounts.sign_up()
        assert accounts.became(account_id, "published")
        event_id = event_of(database, account_id).id

        # when
        outrider(database, "replay", event_id)

        # then
        def skipped() -> list[str]:
            return lines_of(application, "handled before, skipped", event_id)

        assert wait_until(lambda: len(skipped()) == 2, MAX_WAIT_S), application.log
        assert count(database, "profiles") == 1
        assert len(lines_of(application, f"account {account_id} was created")) == 1
        assert lines_of(application, "handler failed") == []


@pytest.mark.faults
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("INSERT ON profiles", id="before the effect"),
        pytest.param("UPDATE ON outbox", id="between effect and settle"),
    ],
)
def test_process_killed_at_the_worst_moment_leaves_one_profile_after_the_next_start(
    database: Database, tmp_path: Path, moment: str
) -> None:
    # given
    before_effect = moment.startswith("INSERT")
    handled = 1 if before_effect else 2
    first = Application("accounts", tmp_path, {"DATABASE_URL": database.url, **QUICK})
    try:
        assert wait_until(lambda: first.is_ready, MAX_WAIT_S), first.log
        with Accounts(first.url, database) as accounts:
            create, begin = STUCK[database.dialect]
            database.run(create, begin.format(moment=moment))

            # when
            account_id = accounts.sign_up()
            assert wait_until(lambda: len(lines_of(first, "event handled")) == handled, MAX_WAIT_S)
            assert (accounts.profile(account_id) is None) == before_effect
            assert event_of(database, account_id).status == "pending"
    finally:
        first.kill()
    _let_go(database)
    database.run(_drop("stuck", moment.rpartition(" ")[2], database))

    # then
    with running(database, tmp_path) as (application, accounts):
        assert accounts.became(account_id, "published"), application.log
        assert accounts.has_profile(account_id)
        assert count(database, "profiles") == 1
        assert len(lines_of(application, "handled before, skipped")) == handled


@pytest.mark.faults
def test_two_processes_share_the_work_and_one_takes_over_from_the_other(
    database: Database, tmp_path: Path
) -> None:
    # given: both are there when people sign up, at the one that stays
    with running(database, tmp_path) as (application, accounts):
        other = Application("accounts", tmp_path, {"DATABASE_URL": database.url, **QUICK})
        try:
            assert wait_until(lambda: other.is_ready, MAX_WAIT_S), other.log
            assert wait_until(lambda: bool(lines_of(application, "has 32 lanes")), MAX_WAIT_S)

            # when
            ids = [accounts.sign_up() for _ in range(20)]
            assert wait_until(lambda: bool(lines_of(other, "event published")), MAX_WAIT_S)
        finally:
            other.kill()
        ids += [accounts.sign_up() for _ in range(20)]

        # then
        assert all(accounts.became(account_id, "published") for account_id in ids)
        assert count(database, "profiles") == 40


def test_relay_that_sleeps_ends_at_once_and_without_a_complaint(
    database: Database, tmp_path: Path
) -> None:
    with running(database, tmp_path, OUTBOX_POLL_INTERVAL_MS="3600000") as (application, accounts):
        # given
        assert accounts.became(accounts.sign_up(), "published")

        # when
        application.stop()

        # then
        assert len(lines_of(application, "stopped after 1 events, 0 left")) == 1
        assert "Application shutdown complete" in application.log
        assert "Traceback" not in application.log


def _let_go(database: Database) -> None:
    """A server of PostgreSQL does not notice at once that its client was killed."""
    if database.dialect == "postgresql":
        database.run(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _drop(trigger: str, table: str, database: Database) -> str:
    where = f" ON {table}" if database.dialect == "postgresql" else ""
    return f"DROP TRIGGER {trigger}{where}"

"""The messaging example's tables: its own and the outbox, in one chain of revisions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from examples.messaging.database import upgrade
from examples.messaging.models import OUTBOX_NAMES
from outrider.store.schema import migrate as schema
from tests.support.databases import DIALECTS, Database, fresh
from tests.support.examples.serving import ROOT

INI = ROOT / "examples/messaging/alembic.ini"


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        yield database


def config(database: Database) -> Config:
    config = Config(INI)
    config.attributes["database_url"] = database.url
    return config


def test_revisions_make_what_the_models_and_the_library_say(database: Database) -> None:
    # when
    upgrade(database.url)

    # then: the first raises if autogenerate finds anything to do
    command.check(config(database))
    with database.engine().connect() as connection:
        assert schema.problems(connection, OUTBOX_NAMES) == []


def test_outbox_has_the_columns_and_the_partial_index_that_a_relay_needs(
    database: Database,
) -> None:
    # when
    upgrade(database.url)

    # then
    outbox = database.picture()["outbox_events"]
    columns = {column[0] for column in outbox["columns"]}
    assert columns >= {"max_retries", "published_at", "last_error", "retry_count", "status"}
    lane = ["lane"] if database.dialect == "postgresql" else []
    fields, _, condition = outbox["indexes"]["outbox_events_pending"]
    assert fields == ["sink", *lane, "position"]
    assert "pending" in condition


def test_revisions_lead_back_to_nothing_and_forth_again(database: Database) -> None:
    # given
    upgrade(database.url)
    first = database.picture()

    # when
    command.downgrade(config(database), "base")
    nothing = database.picture()
    upgrade(database.url)

    # then
    assert set(nothing) == {"alembic_version"}
    assert database.picture() == first


def test_alembic_itself_finds_the_chain_by_the_environment(database: Database) -> None:
    # when
    subprocess.run(
        [sys.executable, "-W", "error", "-m", "alembic", "-c", str(INI), "upgrade", "head"],
        env={"PATH": os.environ["PATH"], "DATABASE_URL": database.url},
        cwd="/",
        check=True,
        timeout=120,
    )

    # then
    assert {"group_messages", "scheduled_messages", "outbox_events"} <= set(database.picture())

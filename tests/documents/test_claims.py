"""Sentences of the pages that name a number or a list say what the code says."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from outrider import RelayConfig
from outrider.admin import schema
from outrider.store import wakeup
from outrider.stream import StreamConfig
from tests.support.documents.blocks import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = {"dev", "docs", "examples"}
IN_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def first_cells(page: str, head: str) -> list[str]:
    """The first column of the table with this head."""
    rows = (ROOT / page).read_text().partition(f"\n{head}\n")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in rows.splitlines()[1:]]


@pytest.mark.parametrize(
    "page", ["docs/guides/recording.md", "docs/adr/0005-wake-up-from-a-thread.md"]
)
def test_debounce_of_wake_ups_is_that_of_the_code(page: str) -> None:
    busy = f"{wakeup._BUSY_DEBOUNCE_S * 1000:g} ms"

    assert wakeup._DEBOUNCE_S == 0.001
    assert busy in words_of(page)
    assert f"{wakeup._BUSY_COMMITS_PER_S:g} commits per second" in words_of(page)
    assert re.search(r"\b1 ms|\bmillisecond\b", words_of(page))


def test_every_database_role_is_listed() -> None:
    assert first_cells("docs/guides/migrations.md", "| role | may | may not |") == list(
        schema.ROLES
    )
    assert f"{IN_WORDS[len(schema.ROLES)]} database roles" in words_of("docs/guides/security.md")
    assert f"{IN_WORDS[len(schema.ROLES)]} database roles" in words_of("CHANGELOG.md")


def test_number_of_events_in_flight_is_that_of_the_defaults() -> None:
    config = RelayConfig()
    in_flight = config.loops * config.batch_size

    assert (
        f"with {IN_WORDS[config.loops]} loops, up to {in_flight} events are in flight by default"
        in words_of("docs/guides/performance.md")
    )


def test_limits_of_the_live_stream_are_those_of_the_defaults() -> None:
    config, page = StreamConfig(), words_of("docs/guides/stream.md")

    assert f"`max_streams` ({config.max_streams})" in page
    assert f"after {config.keep_alive.total_seconds():g} s of silence" in page
    assert f"reads nothing for {config.send_timeout.total_seconds():g} s" in page
    assert f"{config.window_bytes // 2**20} MiB" in page
    assert f"`poll_interval` ({config.poll_interval.total_seconds():g} s)" in page


def test_every_extra_is_listed() -> None:
    listed = re.findall(r"`(\w+)`", " ".join(first_cells("docs/installing.md", "| extra | for |")))

    assert set(listed) == set(PROJECT["optional-dependencies"]) - NOT_FOR_USERS


def test_versions_are_those_of_the_package() -> None:
    page = words_of("docs/installing.md")
    (sqlalchemy,) = (d for d in PROJECT["dependencies"] if d.startswith("sqlalchemy"))
    pythons = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"3\.\d+$", c)]

    assert f"needs Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in page
    assert f"| Python | {', '.join(pythons)} |" in page
    assert f"| SQLAlchemy | {sqlalchemy.partition('>=')[2]} or newer |" in page
    assert f"has {IN_WORDS[len(PROJECT['dependencies'])]} dependencies" in page


def test_age_at_which_the_alert_fires_is_that_of_its_rule() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    rules = " ".join(rule["expr"] for group in groups for rule in group["rules"])
    (limit,) = re.findall(r"outbox_backlog_oldest_age_seconds\S* > (\d+)", rules)

    for page in ("docs/guides/monitoring.md", "docs/guides/performance.md"):
        assert f"warns at {limit} s" in words_of(page)

"""Deliberate bugs are noticed, by the tests that are about the promise they break."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL
from tests.support.mutations.mutate import edits_of, environment, mutated
from tests.support.mutations.mutations import MUTATIONS

pytestmark = pytest.mark.faults
ROOT = Path(__file__).parents[2]
FAILED = 1


def run(tests: Iterable[str], mutation: str | None = None) -> subprocess.CompletedProcess[str]:
    """Without plugins that no such test needs: they take longer to load than the tests to run."""
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *plugins, *tests],
        cwd=ROOT,
        env=environment(mutation) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_has_its_place_in_the_source(name: str) -> None:
    for path, edits in edits_of(name).items():
        assert compile(mutated(edits, path.read_text()), path, "exec")


@pytest.mark.fault(line="S-14")
@pytest.mark.parametrize("name", [n for n, m in MUTATIONS.items() if FULL or m.caught_by])
def test_mutation_is_caught(name: str, scoreboard: Scoreboard) -> None:
    mutation = MUTATIONS[name]
    tests = mutation.tests if FULL else mutation.caught_by

    done = run(tests, name)

    outcomes = set(re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) ", done.stdout, re.MULTILINE))
    assert (done.returncode, outcomes) == (FAILED, {"FAILED"}), done.stdout
    assert re.search(f"^E .*{mutation.shows}", done.stdout, re.MULTILINE), done.stdout
    scoreboard.note("S-14", caught=1)


@pytest.mark.skipif(not FULL, reason="these tests are part of every run")
def test_without_a_mutation_the_same_tests_pass() -> None:
    done = run({test for mutation in MUTATIONS.values() for test in mutation.tests})

    assert done.returncode == 0, done.stdout

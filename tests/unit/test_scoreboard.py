"""The scoreboard of `make faults`: what makes a line good, and which kinds have a test at all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.catalogue import KINDS, LINES, SOMETIMES
from tests.support.faults.scoreboard import Board

TESTS = Path(__file__).parents[1]
GOOD = {"faults": 500, "lost": 0, "duplicates": 3, "bound": 10}
SINKS = [f"{store} + {sink}" for store in "ab" for sink in "wxyz"]


def status_of(line: str, notes: list[dict[str, Any]]) -> str:
    board = Board()
    for figures in notes:
        board.add(line, figures)
    return {result.line: result.status for result in board.results()}[line]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "ok"),
        ({"faults": 499}, "short"),
        ({"lost": 1}, "failed"),
        ({"duplicates": 11}, "failed"),
    ],
)
def test_figures_of_every_case_decide_how_a_line_stands(
    change: dict[str, int], status: str
) -> None:
    notes = [{**GOOD, "case": case} for case in SINKS]

    assert status_of("S-1", [*notes[1:], {**notes[0], **change}]) == status


def test_line_that_lacks_a_case_is_short_and_one_without_any_was_not_run() -> None:
    assert status_of("S-1", [{**GOOD, "case": SINKS[0]}]) == "short"
    assert status_of("S-1", []) == "not run"


def test_part_of_the_suite_renews_its_own_lines_and_keeps_the_others() -> None:
    whole, part = Board(), Board()
    whole.add("S-2", {"faults": 200, "rejected": 90, "stale": 1})
    whole.add("S-7", {"faults": 10_000, "leaked": 0})
    whole.broken["S-2"], whole.broken["S-3"] = {"zombies"}, {"wakes", "crashes"}
    part.add("S-2", {"faults": 200, "rejected": 80, "stale": 0})
    part.passed |= {"zombies", "wakes"}

    part.go_on_from(json.loads(whole.as_json()))

    stand = {result.line: result.status for result in part.results()}
    assert (stand["S-2"], stand["S-3"], stand["S-7"]) == ("ok", "failed", "ok")
    assert part.broken["S-3"] == {"crashes"}


def test_notes_of_one_case_add_up_and_the_longest_wait_counts() -> None:
    board = Board()

    for seconds in (3.0, 9.0, 5.0):
        board.add("S-3", {"faults": 40, "sessions": 100, "first_progress": seconds, "seed": 7})

    assert board.notes["S-3"][""] == {
        "faults": 120,
        "sessions": 300,
        "first_progress": 9.0,
        "seed": 7,
    }


def test_run_in_which_something_never_happened_is_too_gentle() -> None:
    board = Board(kinds=set(KINDS))

    gentle = board.results()[-1]
    board.seen.update(SOMETIMES)

    assert (gentle.status, board.results()[-1].status) == ("short", "ok")


def test_every_kind_belongs_to_a_line_and_nearly_every_one_has_a_test() -> None:
    marks = [
        mark
        for path in TESTS.rglob("test_*.py")
        for mark in re.findall(r"mark\.fault\((.*?)\)", path.read_text(), re.DOTALL)
    ]
    exercised = {kind for mark in marks for kind in re.findall(r'"([A-Z]\d+)"', mark)}

    assert len(KINDS) == 73
    assert {kind.line for kind in KINDS.values()} <= LINES.keys()
    assert exercised <= KINDS.keys()
    assert len(exercised) >= 66, sorted(KINDS.keys() - exercised)

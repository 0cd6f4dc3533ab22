"""The shape of the tests: where helpers live, and what a test file may import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"
FILES = sorted(path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts)
TEST_FILES = [path for path in FILES if not path.is_relative_to(SUPPORT)]


def name_of(path: Path) -> str:
    return path.relative_to(TESTS.parent).as_posix()


def imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_imports_a_test_file(path: Path) -> None:
    ours = [name for name in imported_by(path) if name.startswith("tests.")]

    assert [name for name in ours if not name.startswith("tests.support.")] == []


def test_what_is_no_test_file_is_in_support() -> None:
    allowed = {"__init__.py", "conftest.py"}
    others = [p for p in TEST_FILES if not p.name.startswith("test_") and p.name not in allowed]

    assert [name_of(path) for path in others] == []


def test_waiting_for_a_condition_is_written_once() -> None:
    waits = {
        name_of(path)
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name in {"until", "wait_until", "wait_for", "eventually"}
    }

    assert waits == {"tests/support/until.py"}

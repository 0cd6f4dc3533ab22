"""The shape of the tests: where helpers live, and what a test file may import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts)
NO_TESTS = {"__init__.py", "conftest.py"}


def name_of(path: Path) -> str:
    return path.relative_to(TESTS.parent).as_posix()


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imported_by(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_no_file_imports_a_test_file() -> None:
    found = [
        f"{name_of(path)} imports {name}"
        for path in FILES
        for name in imported_by(path)
        if name.startswith("tests.") and not name.startswith("tests.support.")
    ]

    assert found == []


def test_what_is_no_test_file_is_in_support() -> None:
    others = [
        name_of(path)
        for path in FILES
        if not path.is_relative_to(TESTS / "support")
        and not path.name.startswith("test_")
        and path.name not in NO_TESTS
    ]

    assert others == []


def test_waiting_for_a_condition_is_written_once() -> None:
    names = {"until", "wait_until", "wait_for", "eventually"}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    waits = {
        name_of(path)
        for path in FILES
        for node in ast.iter_child_nodes(nodes_of(path)[0])
        if isinstance(node, functions) and node.name in names
    }

    assert waits == {"tests/support/until.py"}

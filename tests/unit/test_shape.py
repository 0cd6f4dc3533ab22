"""The shape of the project: sizes, public names, documents that keep their promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import outrider

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in SOURCES}
MAX_FILE, MAX_FUNCTION = 400, 60


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def python(*arguments: str) -> str:
    """Run in a process of its own: event types are registered per process."""
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments[-1]}\n{done.stderr}"
    return done.stdout


def test_files_and_functions_stay_short() -> None:
    too_long = [f"{p.name}" for p in SOURCES if p.read_text().count("\n") > MAX_FILE]
    too_long += [
        f"{path}:{node.name}"
        for path, tree in TREES.items()
        for node in functions(tree)
        if length(node) > MAX_FUNCTION
    ]
    sizes = sorted(length(node) for tree in TREES.values() for node in functions(tree))

    assert too_long == []
    assert sizes[len(sizes) * 9 // 10] <= 20, "nine functions in ten fit into 20 lines"


@pytest.mark.parametrize("path", TREES)
def test_module_says_what_it_is_about(path: str) -> None:
    first = (ast.get_docstring(TREES[path]) or "").partition("\n")[0]

    assert first.endswith((".", "?", ":")), f"{path} needs a one-line docstring"


def test_public_names_are_sorted_and_real() -> None:
    assert outrider.__all__ == sorted(outrider.__all__)
    assert all(hasattr(outrider, name) for name in outrider.__all__)
    assert len(outrider.__all__) <= 50


@pytest.mark.parametrize("document", ["requirements.md", "guarantees.md"])
def test_every_test_named_by_a_document_exists(document: str) -> None:
    text = (ROOT / "docs" / document).read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)

    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]

    assert named
    assert missing == []


def test_nothing_reads_data_as_code() -> None:
    """X7: no pickle, eval or import by name on the way from bytes to events."""
    forbidden = {"pickle", "marshal", "shelve", "dill"}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {a.name for a in node.names} | {getattr(node, "module", "") or ""}
                assert not names & forbidden, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "__import__"}, path


def test_shop_example_runs() -> None:
    printed = python(str(ROOT / "examples/shop.py"))

    assert "neither order nor event exists" in printed
    assert "7 effects of 8 events" in printed

"""Generated parts of the pages are as new as what they are generated from."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents.blocks import ROOT

MODULES: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/modules.py"))


def test_module_table_shows_the_import_contract() -> None:
    assert MODULES["main"](["--check"]) == 0, "run `python scripts/modules.py`"


def test_module_table_that_is_behind_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "architecture.md"
    page.write_text("<!-- modules -->\nold\n<!-- end -->\n")
    monkeypatch.setitem(MODULES["main"].__globals__, "PAGE", page)

    assert MODULES["main"](["--check"]) == 1
    assert "is behind" in capsys.readouterr().err
    assert MODULES["main"]([]) == 0
    assert MODULES["main"](["--check"]) == 0


def test_module_table_names_every_module_once() -> None:
    table = MODULES["table"]((ROOT / "pyproject.toml").read_text())
    modules = [
        name for layer in MODULES["layers"]((ROOT / "pyproject.toml").read_text()) for name in layer
    ]

    assert [line.split("`")[1] for line in table.splitlines()[2:]] == modules
    assert len(set(modules)) == len(modules)

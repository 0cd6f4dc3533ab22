"""Every public name says what it promises."""

from __future__ import annotations

import importlib
import runpy
from typing import Any

import outrider
from tests.support.documents.blocks import ROOT

REFERENCE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))


def test_every_public_name_has_a_docstring() -> None:
    modules = [importlib.import_module(name) for name in REFERENCE["MODULES"]]
    names = [(module, name) for module in modules for name in REFERENCE["public_names"](module)]
    silent = [
        f"{module.__name__}.{name}"
        for module, name in names
        if not REFERENCE["documentation"](module, name)
    ]

    assert len(names) > 100
    assert silent == []


def test_reference_has_every_name_that_can_be_imported() -> None:
    page = REFERENCE["all_names"]()

    assert [name for name in outrider.__all__ if f"### {name}\n" not in page] == []

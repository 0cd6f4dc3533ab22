"""The library with one deliberate bug: its source is changed while it is imported.

A sitecustomize does it, so that processes which a test starts have the bug, too.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final

from tests.support.mutations.mutations import MUTATIONS, Edit

VARIABLE: Final = "OUTRIDER_MUTATION"
_ROOT: Final = Path(__file__).parents[3]
_PACKAGE: Final = _ROOT / "src" / "outrider"
_CHILDREN: Final = Path(__file__).parent / "mutated"


def mutated(edits: list[Edit], source: str) -> str:
    """The source with its bug; LookupError if the code to change is not there any more."""
    for edit in edits:
        found = source.count(edit.old)
        if found != 1:
            raise LookupError(f"stale mutation: found {found} times in {edit.file}: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    return source


def edits_of(name: str) -> dict[Path, list[Edit]]:
    edits: dict[Path, list[Edit]] = {}
    for edit in MUTATIONS[name].edits:
        edits.setdefault(_PACKAGE / edit.file, []).append(edit)
    return edits


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, edits: list[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = mutated(self._edits, Path(path).read_text(encoding="utf-8"))
        return compile(source, path, "exec", dont_inherit=True)


class _Finder:
    """The first finder on sys.meta_path; it handles only the changed files."""

    def __init__(self, name: str) -> None:
        self._edits = edits_of(name)

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("outrider."):
            return None
        spec = PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        edits = self._edits.get(Path(spec.origin)) if spec and spec.origin else None
        if spec is None or spec.origin is None or edits is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, edits)
        return spec


def install(name: str) -> None:
    if any(module == "outrider" or module.startswith("outrider.") for module in sys.modules):
        raise RuntimeError("too late for a mutation: outrider has been imported")
    sys.meta_path.insert(0, _Finder(name))  # type: ignore[arg-type]


def environment(name: str | None) -> dict[str, str]:
    """The environment of a process that is to have this bug, and of its children."""
    path = os.pathsep.join(map(str, (_CHILDREN, _ROOT, _PACKAGE.parent)))
    return {**os.environ, "PYTHONPATH": path, VARIABLE: name or ""}

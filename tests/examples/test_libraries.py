"""The extra `examples` brings what the examples import; whoever did not install it is told so."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

import examples

FOLDER = Path(examples.__file__).parent
READMES = sorted(FOLDER.glob("*/README.md"))


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def imported() -> set[str]:
    """The libraries that examples import, by the names of their distributions."""
    names = set[str]()
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module)
    tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    known = packages_distributions()
    return {_normal(known[top][0]) for top in tops - {"examples", "outrider"}}


def brought(requirement: str, seen: set[str]) -> set[str]:
    """What installing this brings along, by the names of the distributions."""
    found = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
    assert found
    name, extras = _normal(found[1]), (found[2] or "").split(",")
    if f"{name}{extras}" in seen:
        return {name}
    seen.add(f"{name}{extras}")
    try:
        needed = requires(name) or []
    except PackageNotFoundError:  # for another platform
        return set()
    wanted = [
        each
        for each in needed
        if "extra ==" not in each
        or any(re.search(rf"""extra == ['"]{e}['"]""", each) for e in extras)
    ]
    return {name}.union(*(brought(each, seen) for each in wanted))


def test_extra_brings_every_library_that_an_example_imports() -> None:
    assert imported() - brought("outrider[examples]", set()) == set()


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_readme_names_the_extra_before_the_first_command(readme: Path) -> None:
    text = readme.read_text()

    assert 0 < text.find("pip install '.[examples]'") < text.find("python -m examples.")


@pytest.mark.parametrize("library", ["dishka", "prometheus_client", "alembic"])
def test_missing_library_is_named_with_the_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(SystemExit, match=rf"{library} is not installed; run: pip install '\.\[ex"):
        importlib.reload(examples)

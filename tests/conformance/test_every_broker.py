"""Nobody is left out: each publisher and each source of the library runs its suite."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BROKERS = Path(__file__).parents[2] / "src/outrider/brokers"
SHARED = {"__init__", "__pycache__", "dead_letter_headers", "network_errors"}
PLACES = [place for place in sorted(BROKERS.iterdir()) if place.stem not in SHARED]
TREES = [ast.parse(path.read_text()) for path in sorted(Path(__file__).parent.glob("test_*.py"))]
SUITE_OF = {"publish_all": "PublisherSuite", "dead_letter": "SourceSuite"}


def adapters(place: Path = BROKERS) -> list[tuple[str, str]]:
    """Every class that has a port's telling method, with the suite it must pass."""
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [
        (node.name, SUITE_OF[method])
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for method in SUITE_OF.keys() & {getattr(item, "name", "") for item in node.body}
    ]


def runs(tree: ast.Module, adapter: str, suite: str) -> bool:
    """Whether a test module uses the adapter and has a class of the suite."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bases = {
        ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
        for base in node.bases
    }
    return adapter in names and suite in bases


@pytest.mark.parametrize(("adapter", "suite"), adapters())
def test_adapter_runs_its_suite(adapter: str, suite: str) -> None:
    proved = any(runs(tree, adapter, suite) for tree in TREES)

    assert proved, f"{adapter} needs a class of {suite}"


@pytest.mark.parametrize("broker", PLACES, ids=lambda place: place.stem)
def test_broker_has_a_publisher(broker: Path) -> None:
    assert "PublisherSuite" in dict(adapters(broker)).values()

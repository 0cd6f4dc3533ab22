"""CONTRIBUTING.md lists the places of a new broker, store or screen; this test looks at each."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.routing import Route

from outrider.cli import publishers
from outrider.dashboard import dashboard
from outrider.testing.services import Services
from tests.support.documents.blocks import ROOT

SOURCE = ROOT / "src" / "outrider"
REFERENCE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages(folder: str) -> list[str]:
    places = sorted((SOURCE / folder).iterdir())
    return [place.name for place in places if (place / "__init__.py").exists()]


BROKERS = packages("brokers")
STORES = [name for name in packages("store") if name != "schema"]


@pytest.mark.parametrize("broker", BROKERS)
def test_broker_is_in_every_place(broker: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (independent,) = (c["modules"] for c in contracts if c["id"] == "brokers")
    made = {function.__name__ for function in publishers._PUBLISHERS.values()}

    assert broker in extras
    assert f"outrider[{broker}" in str(extras["all"]) or f",{broker}," in str(extras["all"])
    assert f"outrider.brokers.{broker}" in independent
    assert f"_{broker}" in made, "outrider relay --to"
    assert hasattr(Services, broker)
    assert (ROOT / f"docs/guides/{broker}.md").exists()
    assert f"guides/{broker}.md" in (ROOT / "docs/index.md").read_text()
    assert f"`{broker}`" in (ROOT / "docs/installing.md").read_text()
    assert f"outrider.brokers.{broker}" in REFERENCE["MODULES"]


@pytest.mark.parametrize("store", STORES)
def test_store_is_in_every_place(store: str) -> None:
    suites = ast.parse((ROOT / "tests/conformance/test_stores.py").read_text())
    classes = [node.name for node in ast.walk(suites) if isinstance(node, ast.ClassDef)]
    migrations = {path.name for path in (SOURCE / "store/schema/migrations").iterdir()}

    assert [name for name in classes if name.lower().startswith(f"test{store}")]
    assert [name for name in migrations if store in name], "steps that make its tables"
    assert store in PROJECT["project"]["optional-dependencies"]
    assert f"`{store}`" in (ROOT / "docs/installing.md").read_text()


def screens() -> list[str]:
    """The paths of the dashboard that a person can open without naming an event."""
    app = dashboard(create_async_engine("sqlite+aiosqlite://"))
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    return sorted(path for path in paths if "{" not in path and not path.startswith("/api"))


@pytest.mark.parametrize("screen", screens())
def test_screen_is_in_every_place(screen: str) -> None:
    name = screen.strip("/") or "overview"
    guide = (ROOT / "docs/guides/dashboard.md").read_text()

    assert (SOURCE / f"dashboard/templates/{name}.html").exists()
    assert f'"{screen}"' in (ROOT / "tests/integration/test_dashboard.py").read_text()
    assert f'"{name.title()}"' in (ROOT / "tests/browser/test_page.py").read_text()
    assert re.search(rf"^\| {name} \| ", guide, re.MULTILINE)


def test_tests_that_contributing_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "CONTRIBUTING.md").read_text())
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}" not in Path(ROOT / path).read_text()
    ]

    assert len(named) >= 8
    assert [place for place in missing if not place.endswith("::")] == []

"""The built site: every page is in it, links lead somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.documents.blocks import ROOT

_TEXT = (".html", ".css", ".svg")
# What a browser fetches by itself; a link that a person may follow is another matter.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//"""
    r"""|<link[^>]+rel=["']?(?:stylesheet|preconnect|icon|preload)[^>]+href=["']?(?:https?:)?//"""
    r"""|@import\s+["'(]*(?:https?:)?//|url\(["']?(?:https?:)?//""",
    re.IGNORECASE,
)


@pytest.mark.skipif(find_spec("material") is None, reason="make docs installs mkdocs-material")
def test_site_builds_without_a_warning_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    foreign = [
        f"{path.relative_to(tmp_path)}: {found[0]}"
        for path in tmp_path.rglob("*")
        if path.suffix in _TEXT and (found := _FETCHED.search(path.read_text()))
    ]
    assert built.returncode == 0, built.stdout + built.stderr
    assert foreign == []
    assert "OutboxRelay(store: RelayStore" in (tmp_path / "reference/index.html").read_text()


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/.-]+\.md", str(yaml.safe_load(settings)["nav"])))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}

    assert pages - {page for page in pages if page.startswith("figures/")} == named


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_outside_the_site_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text())

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []

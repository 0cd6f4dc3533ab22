"""The accessibility checker axe-core, fetched once from npm and kept in the cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from outrider.testing.services import ServiceMissing
from outrider.testing.services.install.cache import cache_folder, locked

VERSION = "4.14.0"
SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"


def source() -> str:
    kept = cache_folder() / f"axe-{VERSION}.min.js"
    with locked("axe"):
        if not kept.exists():
            _fetch(kept)
    found = kept.read_bytes()
    assert hashlib.sha256(found).hexdigest() == SHA256, f"{kept} is not axe-core {VERSION}"
    return found.decode()


def _fetch(kept: Path) -> None:
    command = f"npm pack axe-core@{VERSION}"
    if shutil.which("npm") is None:
        raise ServiceMissing("axe-core", command)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        done = subprocess.run(
            command.split(), cwd=scratch, capture_output=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise ServiceMissing("axe-core", command)
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as package:
            member = package.extractfile("package/axe.min.js")
            assert member is not None
            Path(scratch, "axe.js").write_bytes(member.read())
        Path(scratch, "axe.js").rename(kept)


async def faults(page: Page) -> list[str]:
    """All serious problems that axe finds on the current page."""
    await page.evaluate(source())
    found: list[dict[str, Any]] = (await page.evaluate("axe.run(document)"))["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]

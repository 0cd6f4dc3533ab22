"""The guide's adapter passes the suite that the guide says it passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs/guides/own-adapter.md"


def test_adapter_of_the_guide_passes_its_suite(tmp_path: Path) -> None:
    module = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "test_own.py").write_text(module)

    settings = ("-W", "error", "-o", "asyncio_default_fixture_loop_scope=function")
    command = [sys.executable, "-m", "pytest", *settings, "--rootdir=.", "test_own.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

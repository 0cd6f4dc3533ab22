"""The command `outrider`; importable without its libraries, so that it can say what is missing."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from outrider.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in {"click", "rich"}:
            raise
        sys.exit(f"outrider: {missing.name} is missing: pip install 'outrider[cli]'")
    app(prog_name="outrider")

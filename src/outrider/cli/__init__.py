"""The command `outrider`. It imports its libraries late, to name one that is missing."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from outrider.cli.app import app
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library not in {"click", "rich"}:
            raise
        sys.exit(f"outrider: {library} is missing: pip install 'outrider[cli]'")
    app(prog_name="outrider")

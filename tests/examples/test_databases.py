"""The examples have a database each, and refuse that of another outbox in one sentence."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path

import pytest

from examples.event_logger.__main__ import main as event_logger
from examples.messaging.__main__ import main as messaging

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_names_a_database_of_its_own() -> None:
    pages = sorted(EXAMPLES.glob("*/README.md"))
    named = [set(re.findall(r"@localhost/(\w+) ?", page.read_text())) for page in pages]

    assert named == [{page.parent.name} for page in pages]


@pytest.mark.parametrize("main", [messaging, event_logger])
def test_example_refuses_the_database_of_another_outbox_in_one_sentence(
    main: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(tmp_path / "shared.db") as database:
        database.execute("CREATE TABLE processed_events (event_id)")
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'shared.db'}")
    monkeypatch.setattr(sys, "argv", ["example"])
    assert callable(main)

    with pytest.raises(SystemExit, match=r"processed_events exists.* a database of its own"):
        main()

"""Whatever is typed, a command ends with an exit code of the documented ones, and no traceback."""

from __future__ import annotations

import asyncio
import sqlite3
from itertools import chain
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.cli.app import app
from outrider.store.schema.migrate import create_all
from tests.support.fuzz.budget import fuzz, hostile_text
from tests.support.pages.pages import event, fail, record

FINE, USAGE, LOOKS = 0, 2, {"status", "failed", "show", "config", "catalog show", "schema print"}
# These run until they are told to end; refusing what is wrong is all that is asked of them.
ENDLESS = {"relay", "consume", "dashboard", "demo"}


def commands(group: click.Group, *above: str) -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, *above, name)
        else:
            found[" ".join((*above, name))] = command
    return found


COMMANDS = {name: each for name, each in commands(app).items() if name not in ENDLESS}


def arguments_of(command: click.Command) -> st.SearchStrategy[list[str]]:
    """Its own options with values that fit now and then, and others that nobody ever saw."""
    flags = [o for p in command.params if isinstance(p, click.Option) for o in p.opts]
    switches = [
        o for p in command.params if isinstance(p, click.Option) and p.is_flag for o in p.opts
    ]
    flags = [flag for flag in flags if flag not in ("--watch", "--database", "--against", "--rate")]
    switches = [flag for flag in switches if flag != "--watch"]
    plausible = st.sampled_from(["1", "0", "outbox", "thing.*", "failed", "2026-01-01T00:00Z"])
    pair = st.tuples(st.sampled_from(flags or ["-h"]), plausible | hostile_text).map(list)
    single = st.sampled_from([*switches, "-h", "--"]).map(lambda flag: [flag])
    words = hostile_text.map(lambda text: [text])
    return st.lists(pair | single | words, max_size=4).map(lambda parts: [*chain(*parts)])


anything = st.sampled_from(sorted(COMMANDS)).flatmap(
    lambda name: st.tuples(st.just(name), arguments_of(COMMANDS[name]))
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"

    async def fill() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        await create_all(engine)
        await record(engine, *[event(str(n), f"thing.{n % 3}") for n in range(30)])
        await fail(engine, "thing.1")
        await engine.dispose()

    asyncio.run(fill())
    return path


def contents(path: Path) -> list[str]:
    with sqlite3.connect(path) as db:
        return list(db.iterdump())


def test_any_arguments_end_with_a_documented_exit_code(
    database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{database}")
    before = contents(database)

    def command(given: tuple[str, list[str]]) -> None:
        nonlocal before
        name, arguments = given
        done = CliRunner().invoke(app, [*name.split(), *arguments], input="n\n")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code in range(4), (name, done.exit_code)
        assert "Traceback" not in done.output
        assert len(done.output) < 1_000_000
        after = contents(database)
        if done.exit_code == USAGE or name in LOOKS:
            assert after == before
        before = after

    fuzz(command, anything)

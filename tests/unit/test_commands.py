"""What every command has: JSON for programs, examples for people, exit codes, completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from outrider.cli.app import app
from outrider.cli.database import CannotConnect, Interrupted, ProblemFound
from outrider.settings.fields import all_settings, settings_of
from outrider.store.schema.names import OutboxNames

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/operations.md"
WITHOUT_JSON = {
    "relay": "runs until it is stopped, and logs",
    "consume": "runs until it is stopped, and logs",
    "dashboard": "serves a page, which has a JSON API",
    "demo": "serves a page",
    "completion": "prints a program for a shell",
}


def commands(
    group: click.Group = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_command_that_tells_facts_has_json(name: str) -> None:
    options = {option for p in COMMANDS[name].params for option in p.opts}

    assert ("--json" in options) == (name not in WITHOUT_JSON), WITHOUT_JSON.get(name)


@pytest.mark.parametrize("name", ["", "schema", "catalog", *COMMANDS])
def test_help_shows_an_example(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="outrider").output

    assert re.search(rf"^  .*\boutrider {name}\b", shown.partition("Options:")[0], re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_with_a_database_lets_its_tables_be_named(name: str) -> None:
    options = {option for p in COMMANDS[name].params for option in p.opts}
    named = {setting.flag for setting in settings_of(OutboxNames)}

    assert len(named) == 5
    assert "--database" not in options or named <= options


@pytest.mark.parametrize("name", ["relay", "config", "doctor"])
def test_command_has_every_setting_with_its_variables_and_default_in_the_help(name: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [name, "--help"]).output.split())

    for setting in all_settings():
        facts = ", ".join(setting.environment)
        facts += f"; default: {setting.default}" if setting.default is not None else ""
        assert f"{setting.flag} " in shown
        assert f"{setting.help} [{facts}]" in shown


def test_exit_codes_are_in_the_help_and_in_the_guide() -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    guide = GUIDE.read_text()

    errors = (ProblemFound, click.UsageError, CannotConnect, Interrupted)
    for code in (0, *(error.exit_code for error in errors)):
        assert re.search(rf"[:,] {code} \w", shown), code
        assert f"\n| {code} | " in guide, code


def test_breaks_of_a_catalog_are_told_to_programs(tmp_path: Path) -> None:
    before = tmp_path / "catalog.json"
    before.write_text(json.dumps({"shop.gone": {}}))

    # A process of its own has no event types of other tests.
    asked = ["catalog", "check", "tests.support.shop", "--against", str(before), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "outrider", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    [problem] = json.loads(done.stdout)["breaks"]
    assert "shop.gone" in problem


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])

    assert done.exit_code == 0
    assert f"_OUTRIDER_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.slow
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "outrider"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m outrider "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(outrider completion bash)"; '
        'tab() { COMP_WORDS=(outrider "$@"); COMP_CWORD=$#; COMPREPLY=(); '
        '_outrider_completion outrider; echo "${COMPREPLY[@]}"; }; '
        "tab sche; tab schema ap; tab status --wat"
    )

    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == ["schema", "apply", "--watch"]

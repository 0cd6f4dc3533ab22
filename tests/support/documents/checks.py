"""Blocks that are read, not run: each must at least be what it claims to be."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from unittest.mock import patch

import click
import yaml

from outrider.cli.app import app
from tests.support.documents.blocks import ROOT, Block

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_ENDS = ("|", "||", "&&", ">")
_PARTS = {path.stem for path in (ROOT / "bench").glob("*.py")} | {"nats", "redis"}


def parse(block: Block, code: str) -> None:
    assert block.language in _PARSERS, f"{block}: nobody knows the language {block.language!r}"
    try:
        _PARSERS[block.language](code)
    except (SyntaxError, ValueError, click.ClickException, yaml.YAMLError) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else error
        raise AssertionError(f"{block}: {message}") from error


def check_names(line: str) -> bool:
    """Whether this is a command that installs, or runs for minutes; what it names must exist."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["make"]:
        _make(words[1:])
    elif words[:2] == ["pip", "install"]:
        _pip(line)
    return words[:1] in (["make"], ["pip"])


def _python(code: str) -> None:
    compile(code, "block", "exec")


def _shell(code: str) -> None:
    said = subprocess.run(["bash", "-n", "-c", code], capture_output=True, text=True, check=False)
    if said.returncode:
        raise ValueError(said.stderr)
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["outrider"]:
            with patch.dict(os.environ, DATABASE_URL="sqlite:///shop.db"):
                _outrider(list(takewhile(lambda word: word not in _ENDS, words[1:])))
        check_names(line)


def _outrider(arguments: list[str]) -> None:
    """As the command itself would read it, up to the moment when it would begin."""
    command: click.Command = app
    context = None
    while True:
        context = command.make_context("outrider", list(arguments), parent=context)
        if not isinstance(command, click.Group):
            return
        rest = [*context._protected_args, *context.args]
        _, found, arguments = command.resolve_command(context, rest)
        assert found is not None
        command = found


def _make(words: list[str]) -> None:
    target, *settings = words
    if target not in _TARGETS:
        raise ValueError(f"there is no target {target} in the Makefile")
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "PART" and value not in _PARTS:
            raise ValueError(f"there is no benchmark {value}")


def _pip(line: str) -> None:
    extras = re.findall(r"outrider\[([\w,]+)\]", line)
    for extra in (name for names in extras for name in names.split(",")):
        if extra not in _PROJECT["optional-dependencies"]:
            raise ValueError(f"there is no extra {extra}")


def _javascript(code: str) -> None:
    """By the interpreter that comes with Playwright."""
    import playwright

    node = Path(playwright.__file__).parent / "driver/node"
    command = [node, "--check", "-"]
    said = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    if said.returncode:
        raise ValueError(said.stderr)


def _as_it_is(_: str) -> None:
    """A drawing, or what a program prints."""


_PARSERS: dict[str, Callable[[str], object]] = {
    "python": _python,
    "sh": _shell,
    "sql": _as_it_is,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "json": json.loads,
    "js": _javascript,
    "text": _as_it_is,
}

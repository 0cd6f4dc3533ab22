"""Blocks that are parsed, not run; and the names in commands that would install or take minutes."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.support.documents.blocks import ROOT, Block

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_PARTS = set(re.findall(r'^    "(\w+)": ', (ROOT / "bench/__main__.py").read_text(), re.MULTILINE))


def parse(block: Block, code: str) -> None:
    assert block.language in _PARSERS, f"{block}: nobody knows the language {block.language!r}"
    try:
        _PARSERS[block.language](code)
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        raise AssertionError(f"{block}: {error}") from error


def excerpt(block: Block) -> None:
    """Every line is in the programs that follow, in this order; `...` stands for other lines."""
    parse(block, block.code)
    lines = iter([line.strip() for line in block.source.splitlines()])
    for line in filter(None, (line.strip() for line in block.code.splitlines())):
        assert line == "..." or line in lines, f"{block}: {line!r} is not in the program below"


def check_names(line: str) -> bool:
    """Whether this is a command that installs, or runs for minutes; what it names must exist."""
    if line.startswith("make "):
        _make(shlex.split(line, comments=True)[1:])
    elif line.startswith("pip install "):
        _pip(line)
    return line.startswith(("make ", "pip "))


def _python(code: str) -> None:
    ast.parse(code)


def _make(words: list[str]) -> None:
    target, *settings = words
    if target not in _TARGETS:
        raise ValueError(f"there is no target {target} in the Makefile")
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "PART" and value not in _PARTS:
            raise ValueError(f"there is no benchmark {value}")


def _pip(line: str) -> None:
    extras = re.findall(r"(?:outrider|\.)\[([\w,]+)\]", line)
    for extra in (name for names in extras for name in names.split(",")):
        if extra not in _PROJECT["optional-dependencies"]:
            raise ValueError(f"there is no extra {extra}")


def _javascript(code: str) -> None:
    """Parse JavaScript with the Node.js of Playwright."""
    import playwright

    node = Path(playwright.__file__).parent / "driver/node"
    command = [node, "--check", "-"]
    said = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    if said.returncode:
        raise ValueError(said.stderr)


def _as_it_is(_: str) -> None:
    """A drawing, or the output of a program."""


_PARSERS: dict[str, Callable[[str], object]] = {
    "python": _python,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "json": json.loads,
    "js": _javascript,
    "text": _as_it_is,
}

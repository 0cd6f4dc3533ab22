"""Runs one search with Spin: translate, compile, look at every state that can be reached."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outrider.testing.services.install.programs import Program

if TYPE_CHECKING:
    from model.variants import Variant

HERE: Final = Path(__file__).parent
SPIN: Final = Program(
    service="Spin", names=("spin",), remedy="apt-get install spin", package="spin"
)
COMPILER: Final = Program(
    service="a C compiler",
    names=("gcc",),
    remedy="apt-get install build-essential",
    package="build-essential",
)
_MEGABYTES: Final = 4000


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search has come to."""

    variant: Variant
    result: str
    states: int
    seconds: float
    path: str = ""
    """The steps that lead to a broken promise, as Spin prints them."""

    @property
    def as_expected(self) -> bool:
        return self.result == self.variant.expected


class SearchFailed(Exception):
    """The search did not come to an end, so it says nothing."""


def search(variant: Variant) -> Found:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="outrider-model-") as folder:
        for source in HERE.glob("*.pml"):
            shutil.copy(source, folder)
        switches = [f"-D{name}={value}" for name, value in variant.switches.items()]
        _run(folder, SPIN.get(install=True), "-a", *switches, variant.file)
        kind = "-DNP" if variant.endless else "-DSAFETY"
        speed = "-O2" if variant.long else "-O0"
        _run(
            folder,
            COMPILER.get(install=True),
            speed,
            kind,
            f"-DMEMLIM={_MEGABYTES}",
            "-w",
            "-opan",
            "pan.c",
        )
        told = _run(folder, "./pan", "-m10000", "-w20", *(["-l"] if variant.endless else []))
        states = re.search(r"(\d+) states, stored", told)
        if states is None or re.search("too small|MEMLIM|out of memory", told):
            raise SearchFailed(f"{variant.name}: {told[:500]}")
        path = ""
        if "errors: 0" not in told:
            path = _run(folder, SPIN.get(install=True), "-t", "-p", *switches, variant.file)
        result = _effects(told) or _broken(folder, variant.file, path)
    seconds = round(time.perf_counter() - started, 1)
    return Found(variant=variant, result=result, states=int(states[1]), seconds=seconds, path=path)


def _effects(told: str) -> str:
    """How often an event can have taken effect, as the inbox's model prints it."""
    return ", ".join(sorted(set(re.findall(r"^effects: (\w+)", told, re.MULTILINE))))


def _broken(folder: str, file: str, path: str) -> str:
    """The word behind the assertion that does not hold."""
    if not path:
        return "holds"
    line = re.search(r":(\d+), Error: assertion violated", path)
    if line is None:
        return "goes on for ever"
    source = Path(folder, file).read_text().splitlines()[int(line[1]) - 1]
    return source.rpartition("/* ")[2].removesuffix("*/").strip()


def _run(folder: str, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SearchFailed(f"{command[0]} says: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout

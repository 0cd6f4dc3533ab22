"""The scoreboard: what tests note about the lines of the catalogue, as a table and as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from outrider.testing.services import ServerFailed, Services
from tests.support.faults.catalogue import KINDS, LINES, NEVER, SOMETIMES, Line

Figures = dict[str, Any]
_NOTE, _SEEN, _KINDS, _VERSIONS = "note", "seen", "kinds", "versions"
_LARGEST: Final = ("first_progress",)
_HIDDEN: Final = ("case", "seed")


class Scoreboard:
    """Where a test notes its figures; they travel with the test's report."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def note(self, line: str, **figures: Any) -> None:
        """Note figures of a line; each `case` has to reach the target."""
        assert line in LINES, f"{line} is no line of the scoreboard"
        self._item.user_properties.append((_NOTE, [line, figures]))

    def saw(self, what: str, times: int = 1) -> None:
        """Note something that must happen at least once in a full run."""
        assert what in SOMETIMES, f"{what!r} is not among {SOMETIMES}"
        self._item.user_properties.append((_SEEN, [what, times]))


@pytest.fixture
def scoreboard(request: pytest.FixtureRequest) -> Scoreboard:
    return Scoreboard(request.node)


class Result(NamedTuple):
    line: str
    status: str
    seen: str


@dataclass
class Board:
    """Everything that was noted, from all workers."""

    notes: dict[str, dict[str, Figures]] = field(default_factory=lambda: defaultdict(dict))
    seen: Counter[str] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)
    broken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Lines, each with the tests that failed."""
    passed: set[str] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)
    is_part: bool = False
    """Whether some cases were left out on purpose."""

    def read(self, report: pytest.TestReport) -> None:
        properties = report.user_properties
        marks = [value for name, value in properties if name == _KINDS]
        kinds = {kind for names, _ in marks for kind in names}
        if report.failed:
            for line in {line for _, line in marks if line} | {KINDS[kind].line for kind in kinds}:
                self.broken[line].add(report.nodeid)
        if report.when != "call":
            return
        if report.passed:
            self.kinds |= kinds
            self.passed.add(report.nodeid)
        for name, value in properties:
            if name == _NOTE:
                self.add(*value)
            elif name == _SEEN:
                self.seen[value[0]] += value[1]
            elif name == _VERSIONS:
                self.versions |= value

    def go_on_from(self, facts: dict[str, Any]) -> None:
        """Take the results of an earlier run for lines and tests that this run left out."""
        for name, line in facts["lines"].items():
            if not self.notes[name]:
                self.notes[name] = {str(case.get("case", "")): case for case in line["cases"]}
        for name, tests in facts["broken"].items():
            self.broken[name] |= {*tests} - self.passed
        self.kinds |= KINDS.keys() - {*facts["kinds"]["missing"]}
        self.seen.update(facts["sometimes"])
        self.versions = facts["versions"] | self.versions

    def add(self, line: str, figures: Figures) -> None:
        """Add up the notes of one case; of durations take the longest."""
        known = self.notes[line].setdefault(str(figures.get("case", "")), {})
        for name, value in figures.items():
            if isinstance(value, str) or name in _HIDDEN or name not in known:
                known[name] = value
            else:
                known[name] = max(known[name], value) if name in _LARGEST else known[name] + value

    @property
    def missing(self) -> list[str]:
        return [kind for kind in KINDS if kind not in self.kinds]

    @property
    def unseen(self) -> list[str]:
        return [what for what in SOMETIMES if not self.seen[what]]

    def results(self) -> list[Result]:
        self.notes["S-17"] = {"": {"kinds": len(self.kinds), "of": len(KINDS)}}
        return [self._result(name, line) for name, line in LINES.items()]

    def _result(self, name: str, line: Line) -> Result:
        cases = self.notes[name]
        seen = "; ".join(_words(case, figures) for case, figures in sorted(cases.items()))
        states = [_state(line, figures) for figures in cases.values()]
        if name == "S-17" and self.unseen:
            states.append("short")
        if len(cases) < line.cases and not self.is_part:
            states.append("short")
        if self.broken[name] or "failed" in states:
            return Result(name, "failed", seen)
        if not cases:
            return Result(name, "not run", seen)
        return Result(name, "short" if "short" in states else "ok", seen)

    def as_json(self) -> str:
        facts = {
            "command": "make faults",
            "python": sys.version.split()[0],
            "versions": dict(sorted(self.versions.items())),
            "lines": {
                r.line: {
                    "target": LINES[r.line].target,
                    "status": r.status,
                    "cases": [*self.notes[r.line].values()],
                }
                for r in self.results()
            },
            "broken": {name: sorted(tests) for name, tests in self.broken.items() if tests},
            "kinds": {"exercised": len(self.kinds), "of": len(KINDS), "missing": self.missing},
            "sometimes": {what: self.seen[what] for what in SOMETIMES},
        }
        return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"

    def as_markdown(self) -> str:
        rows = [
            f"| {r.line} | {LINES[r.line].words} | {LINES[r.line].target} | {r.seen} | {r.status} |"
            for r in self.results()
        ]
        head = "| line | what | target | seen | |\n|---|---|---|---|---|"
        versions = ", ".join(f"{kind} {version}" for kind, version in sorted(self.versions.items()))
        ending = [f"- {text}" for text in self.endings()] + [f"- On {versions}."]
        parts = ["# Faults", "As seen by `make faults`.", "\n".join([head, *rows])]
        return "\n\n".join([*parts, "\n".join(ending)]) + "\n"

    def endings(self) -> list[str]:
        kinds = f"Kinds exercised: {len(self.kinds)} of {len(KINDS)}"
        lacking = f"; without a test here: {', '.join(self.missing)}" if self.missing else ""
        sometimes = ", ".join(f"{what} {self.seen[what]:,}" for what in SOMETIMES)
        return [kinds + lacking + ".", f"Seen on the way: {sometimes}."]


def _state(line: Line, figures: Figures) -> str:
    wrong = [name for name in NEVER if figures.get(name)]
    if "bound" in figures and figures["duplicates"] > figures["bound"]:
        wrong.append("duplicates")
    wrong += [name for name, most in line.at_most.items() if figures.get(name, 0) > most]
    if wrong:
        return "failed"
    return (
        "ok" if all(figures.get(n, 0) >= least for n, least in line.at_least.items()) else "short"
    )


def _words(case: str, figures: Figures) -> str:
    shown = [f"{name} {_number(value)}" for name, value in figures.items() if name not in _HIDDEN]
    return ": ".join(filter(None, [case, ", ".join(shown).replace("_", " ")]))


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Gatherer:
    """Collects the reports of all tests, from all workers, and prints the board at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.board, self._config = Board(is_part=bool(config.option.keyword)), config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.board.read(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        allowed = {"ok"} if self._is_whole else {"ok", "not run"}
        missed = [r.line for r in self._results() if r.status not in allowed]
        if missed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if (path := self._config.getoption("scoreboard")) is not None:
            self._write(Path(f"{path}.json"), Path(f"{path}.md"))

    def _write(self, facts: Path, page: Path) -> None:
        if not self._is_whole and facts.exists():
            self.board.go_on_from(json.loads(facts.read_text()))
        facts.write_text(self.board.as_json())
        page.write_text(self.board.as_markdown())

    def _results(self) -> list[Result]:
        results = self.board.results()
        return results if self._is_whole else results[:-1]  # the last line is the sum of all lines

    @property
    def _is_whole(self) -> bool:
        """A partial run is judged by its own lines only."""
        options = self._config.option
        everywhere = self._config.args_source is not pytest.Config.ArgsSource.ARGS
        return everywhere and not options.keyword and "line" not in options.markexpr

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("scoreboard")
        for result in self._results():
            if not self._is_whole and result.status == "not run":
                continue
            line = LINES[result.line]
            good = result.status == "ok"
            head = f"{result.line:<5}{result.status:<8}{line.words} ({line.target})"
            terminalreporter.write_line(head, green=good, red=not good)
            for part in filter(None, result.seen.split("; ")):
                terminalreporter.write_line(f"{'':13}{part}")
        for text in self.board.endings() if self._is_whole else ():
            terminalreporter.write_line(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = (
        "write what was seen to PATH.json and PATH.md; a part of the suite renews its lines there"
    )
    parser.addoption("--scoreboard", metavar="PATH", default=None, help=words)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if os.environ.get("OUTRIDER_FULL") and not is_worker:
        config.pluginmanager.register(Gatherer(config), "outrider-scoreboard")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("fault"):
            unknown = ({*mark.args} - KINDS.keys()) | ({*mark.kwargs.values()} - LINES.keys())
            if unknown or mark.kwargs.keys() - {"line"}:
                raise pytest.UsageError(f"{item.nodeid}: not in the catalogue: {sorted(unknown)}")
            item.user_properties.append((_KINDS, [list(mark.args), mark.kwargs.get("line")]))


_versions: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Add the versions of the servers, once for each server."""
    try:
        return (yield)
    finally:
        services = getattr(item, "funcargs", {}).get("services")
        if isinstance(services, Services) and os.environ.get("OUTRIDER_FULL"):
            item.user_properties.append((_VERSIONS, _versions_of(services)))


def _versions_of(services: Services) -> dict[str, str]:
    for server in services.running:
        if server.kind not in _versions:
            with suppress(ServerFailed):
                _versions[server.kind] = server.version
    return _versions

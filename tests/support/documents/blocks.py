"""The code blocks of a page in order, and what each is for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "bench/README.md", "deploy/README.md")
    ),
    *sorted(ROOT.glob("examples/*/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
NEW_TERMINAL, SAME_TERMINAL = "another terminal", "that terminal"

_FENCE = re.compile(r'```(?P<language>[a-z]*)(?: title="(?P<title>[^"]+)")?')
SETUPS = ROOT / "tests" / "support" / "documents" / "setups"
_SETUP = re.compile(r"<!-- prepared by tests: (?P<name>\w+) -->")
EXCERPT = "<!-- excerpt of the program below -->"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block. Its title is the file that it is written to, or where a command stays:
    in another terminal, or in that one, where what ran before has ended."""

    page: Path
    line: int
    language: str
    title: str | None
    code: str
    excerpt: bool = False
    """Whether it only repeats lines of a program that follows on the page."""
    source: str = ""
    """The Python blocks that follow an excerpt."""
    setup: bool = False
    """Whether it prepares what the page takes for granted."""
    prints: str = ""
    """The text block that comes next; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    before = ""
    for number, line in lines:
        if line.startswith("```"):
            found.append(_read(page, number, line, before, lines))
        elif setup := _SETUP.fullmatch(line):
            found.append(_setup(page, number, setup["name"]))
        before = line or before
    return _with_sources(_with_output(found))


def _read(page: Path, number: int, line: str, before: str, lines: object) -> Block:
    fence = _FENCE.fullmatch(line)
    assert fence, f"{page}:{number}: write ```language, or ```language title=…"
    code = []
    for _, inner in lines:  # type: ignore[attr-defined]
        if inner == "```":
            break
        code.append(inner)
    return Block(
        page=page,
        line=number,
        language=fence["language"],
        title=fence["title"],
        code="\n".join(code) + "\n",
        excerpt=before == EXCERPT,
    )


def _setup(page: Path, number: int, name: str) -> Block:
    """A program that readers do not see: it makes what the page takes for granted."""
    code = (SETUPS / f"{name}.py").read_text()
    return Block(page=page, line=number, language="python", title=None, code=code, setup=True)


def _with_output(blocks: list[Block]) -> list[Block]:
    """A text right behind something that runs is what it prints; any other text is a drawing."""
    texts = {block.line: block.code for block in blocks if block.language == "text"}
    return [
        replace(block, prints=texts.get(block.line + block.code.count("\n") + 3, ""))
        if block.language in ("python", "sh")
        else block
        for block in blocks
    ]


def _with_sources(blocks: list[Block]) -> list[Block]:
    def later(block: Block) -> str:
        programs = (b for b in blocks if b.line > block.line and b.language == "python")
        return "".join(b.code for b in programs if not b.excerpt)

    return [replace(block, source=later(block)) if block.excerpt else block for block in blocks]

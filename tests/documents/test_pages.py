"""What pages show is true: Python, shell and SQL blocks are run, other languages are parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents.blocks import PAGES, ROOT, Block, blocks_of
from tests.support.documents.stage import Stage

BLOCKS = {page.relative_to(ROOT).as_posix(): blocks_of(page) for page in PAGES}
TUTORIAL = "docs/tutorial/"
STORIES = {page: blocks for page, blocks in BLOCKS.items() if not page.startswith(TUTORIAL)}
# Its pages go on where the one before them ended.
STORIES[TUTORIAL] = [
    b for page, found in BLOCKS.items() if page.startswith(TUTORIAL) for b in found
]
GROW_BY_THEMSELVES = (
    *("docs/architecture.md", "docs/benchmarks.md", "docs/reference.md", "docs/requirements.md"),
    "docs/guides/relay.md",
)


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(tmp_path, lambda: request.getfixturevalue("services"))
    yield stage
    stage.kill()


@pytest.mark.parametrize("page", [page for page, blocks in STORIES.items() if blocks])
def test_everything_on_the_page_works_as_it_says(page: str, stage: Stage) -> None:
    for block in STORIES[page]:
        stage.play(block)

    stage.close()


def test_every_guide_begins_with_a_sentence_and_short_code() -> None:
    """One paragraph, then at most sixteen lines that matter, before anything else."""
    guides = {
        page: [block for block in blocks if not block.setup]
        for page, blocks in BLOCKS.items()
        if page.startswith("docs/guides/")
    }
    long = [
        str(blocks[0])
        for blocks in guides.values()
        if not blocks or blocks[0].line > 12 or blocks[0].code.count("\n") > 16
    ]

    assert len(guides) > 20
    assert long == []


@pytest.mark.parametrize("page", [page for page in BLOCKS if page not in GROW_BY_THEMSELVES])
def test_page_is_read_in_one_sitting(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= 180


def test_text_in_place_of_code_is_rare() -> None:
    """What looks like code is marked as code, so that it is tried."""
    texts = [block for blocks in BLOCKS.values() for block in blocks if block.language == "text"]

    assert [str(block) for block in texts if _looks_like_code(block)] == []


def _looks_like_code(block: Block) -> bool:
    return any(
        line.startswith(("import ", "from ", "def ", "async ", "class ", "outrider ", "SELECT "))
        for line in block.code.splitlines()
    )


WORDS_NOT_USED = {
    r"\bpurg(e|es|ed|ing)\b": "delete",
    r"\bforg(et|ets|otten|etting)\b": "delete",
    r"\bset(s|ting)? aside\b": "dead letter",
    r"\bin hand\b": "in flight",
    r"--workers\b": "--processes",
    r"\b(PostgresOutbox|SqlOutbox|MemoryOutbox)\b": "…OutboxStore",
    r"\bFaultyLink\b": "FaultyProxy",
}


@pytest.mark.parametrize("page", BLOCKS)
def test_page_uses_one_word_per_idea(page: str) -> None:
    text = re.sub(r"```.*?```|`tests/[^`]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
    found = [
        f"{hit[0]}: write {better}"
        for bad, better in WORDS_NOT_USED.items()
        if (hit := re.search(bad, text))
    ]

    assert found == []

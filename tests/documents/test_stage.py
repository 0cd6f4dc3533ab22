"""Whoever tries out the pages notices what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.testing.services import Services
from tests.support.documents import blocks
from tests.support.documents.stage import Stage


def no_services() -> Services:
    raise AssertionError("this page names no server")


def play(folder: Path, text: str) -> None:
    page = folder / "page.md"
    page.write_text(text)
    stage = Stage(folder, no_services)
    try:
        for block in blocks.blocks_of(page):
            stage.play(block)
        stage.close()
    finally:
        stage.kill()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)


def test_page_whose_blocks_rely_on_each_other_is_played_in_order(tmp_path: Path) -> None:
    play(
        tmp_path,
        '```python title="shop.py"\nimport os\n\nprint(os.environ["NAME"])\n```\n\n'
        "```sh\nexport NAME=shop\necho shop is up > log\n```\n\n"
        '```sh title="another terminal"\ntail -f log\n```\n\n```text\n… is up\n```\n\n'
        "```sh\npython shop.py\n```\n\n```text\nshop\n```\n",
    )


def test_excerpt_repeats_lines_of_the_program_below_it(tmp_path: Path) -> None:
    play(
        tmp_path,
        f"{blocks.EXCERPT}\n```python\na = 1\n...\nb = a\n```\n\n"
        "```python\nif True:\n    a = 1\n    c = 2\n    b = a\n```\n",
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "says that it prints '2'"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```sh\nls /nowhere | cat\n```\n", "ended with"),
        ('```sh title="another terminal"\ntrue\n```\n\n```text\nup\n```\n', "has ended"),
        ("```toml\na = \n```\n", "page.md:1"),
        ("```basic\nGOTO 1\n```\n", "nobody knows the language"),
        ("```\n???\n```\n", "nobody knows the language"),
        ("``` {.python}\n```\n", "write ```language"),
        ("```sh\npip install 'outrider[telepathy]'\n```\n", "no extra telepathy"),
        ("```sh\npip install '.[telepathy]'\n```\n", "no extra telepathy"),
        (
            f"{blocks.EXCERPT}\n```python\ny = 1\n```\n\n```python\nx = 1\n```\n",
            "'y = 1' is not in",
        ),
    ],
)
def test_what_is_wrong_with_a_page_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=complaint):
        play(tmp_path, text)

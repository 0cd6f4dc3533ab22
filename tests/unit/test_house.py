"""The layout: folders of a readable size, small ports, imports one way, public modules only."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outrider"
MODULES = sorted(SOURCE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES})

MAX_ROOT_FILES = 6
MAX_FOLDER_FILES = 12
MAX_LAYERS = 10
MAX_PORT_METHODS = 6
MAX_PORTS_LINES = 200
MAX_ANY_PER_1000_LINES = 8

# What users may import. Everything else may change without notice.
PUBLIC = re.compile(
    r"""outrider
    ( \.(admin|brokers|dashboard|stream|observability|testing)
    | \.brokers\.(kafka|nats|rabbitmq|redis)
    | \.integrations(\.\w+)?
    | \.observability\.(logging|opentelemetry|prometheus)
    | \.testing\.(conformance|faulty_proxy|memory_broker|memory_store|services|spy|store_suite)
    )?""",
    re.VERBOSE,
)


def files_of(folder: Path) -> list[str]:
    names = {path.name for path in folder.iterdir() if path.is_file()}
    return sorted(name for name in names - {"__init__.py", "__main__.py"} if name.endswith(".py"))


def layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return list(found)


def ports() -> dict[str, list[str]]:
    """Every Protocol of ports.py with the methods that it declares itself."""
    tree = ast.parse((SOURCE / "ports.py").read_text())
    return {
        node.name: [
            item.name
            for item in node.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for node in tree.body
        if isinstance(node, ast.ClassDef) and "Protocol" in [ast.unparse(b) for b in node.bases]
    }


def test_root_has_few_files() -> None:
    assert len(files_of(SOURCE)) <= MAX_ROOT_FILES, files_of(SOURCE)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.relative_to(SOURCE).as_posix())
def test_folder_has_few_files(folder: Path) -> None:
    assert len(files_of(folder)) <= MAX_FOLDER_FILES, "give it chapters"


def test_layers_are_few_and_every_module_has_one() -> None:
    named = {name for layer in layers() for name in re.split(r"[|:\s]+", layer)}
    present = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    present |= {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}

    assert len(layers()) <= MAX_LAYERS
    assert named == present


def test_ports_are_small() -> None:
    large = {name: found for name, found in ports().items() if len(found) > MAX_PORT_METHODS}

    assert len(ports()) > 5
    assert large == {}
    assert (SOURCE / "ports.py").read_text().count("\n") <= MAX_PORTS_LINES


def is_any(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "Any"


def test_any_is_rare() -> None:
    texts = [path.read_text() for path in MODULES]
    lines = sum(text.count("\n") for text in texts)
    names = [node for text in texts for node in ast.walk(ast.parse(text)) if is_any(node)]
    uses = len(names)

    assert 1000 * uses / lines <= MAX_ANY_PER_1000_LINES, f"{uses} in {lines} lines"


def imported(code: str) -> set[str]:
    """The modules of ours that this code imports, or imports from."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
            case _:
                pass
    return {name for name in found if name.partition(".")[0] == "outrider"}


def documents() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return pages + sorted((ROOT / "examples").rglob("*.md"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", documents(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_documents_import_public_modules_only(page: Path) -> None:
    inside = {name for block in blocks(page) for name in imported(block)}

    assert {name for name in inside if not PUBLIC.fullmatch(name)} == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_examples_import_public_modules_only(path: Path) -> None:
    inside = imported(path.read_text())

    assert {name for name in inside if not PUBLIC.fullmatch(name)} == set()


def index() -> list[tuple[str, list[str]]]:
    """The questions of the architecture page, each with the paths that answer it."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## Where is …?")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    return [(question, re.findall(r"`([\w/]+\.\w+)`", answer)) for question, answer in rows]


def journey() -> list[str]:
    """The files that one event passes through, as the architecture page lists them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## One event, file by file")[2].partition("\n## ")[0]
    return re.findall(r"`([\w/]+\.py)`", section)


def test_index_names_paths_that_exist() -> None:
    questions = index()
    missing = [path for _, paths in questions for path in paths if not (SOURCE / path).exists()]

    assert len(questions) >= 25
    assert all(paths for _, paths in questions)
    assert missing == []


def test_journey_of_an_event_is_short() -> None:
    files = journey()

    assert [path for path in files if not (SOURCE / path).exists()] == []
    assert 10 < len(set(files)) <= 30

"""python scripts/modules.py [--check]: the module table of docs/architecture.md.

The layers come from the import contract in pyproject.toml, the words from each module's docstring.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"

_BLOCK = re.compile(r"(<!-- modules -->\n).*?(<!-- end -->)", re.DOTALL)


def layers(settings: str) -> list[list[str]]:
    """The modules of each layer, the highest layer first."""
    contracts = tomllib.loads(settings)["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [re.split(r"[|:\s]+", layer) for layer in found]


def about(module: str) -> str:
    """The first line of its docstring."""
    folder = ROOT / "src" / "outrider" / module
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].replace("|", "\\|")


def table(settings: str) -> str:
    lines = ["| layer | module | is about |", "|--:|---|---|"]
    for number, modules in enumerate(layers(settings), 1):
        lines += [f"| {number} | `{module}` | {about(module)} |" for module in modules]
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    made = table((ROOT / "pyproject.toml").read_text())
    return _BLOCK.sub(lambda found: f"{found[1]}\n{made}\n{found[2]}", page)


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    new = filled(page)
    if "--check" in arguments:
        if new != page:
            print("docs/architecture.md is behind: python scripts/modules.py", file=sys.stderr)
        return int(new != page)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

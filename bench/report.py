"""python -m bench.report [--check]: writes every measured figure of the pages, from the results.

Three kinds of marks are filled: `<!-- bench: part -->` with all tables and plots of a part,
`<!-- figures: name -->` with a table of `summary.py`, and `<!-- figure: name -->` with one figure.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import measure, plots, summary
from bench.figures import FIGURES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGE = "benchmarks.md"

_BLOCK = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FIGURE = re.compile(r"(<!-- figure: ([\w.]+) -->).*?(<!-- /figure -->)")
_OURS = re.compile("outrider|relay|consumer|publisher|source|event", re.IGNORECASE)


def fill(page: str, images: Path) -> str:
    """The page with every mark filled anew; its plots are written to `images`."""
    images.mkdir(parents=True, exist_ok=True)
    page = _BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], images)}{found[3]}", page)
    page = _TABLE.sub(lambda found: f"{found[1]}{_summary(found[2])}{found[3]}", page)
    return _FIGURE.sub(lambda found: f"{found[1]}{FIGURES[found[2]].text()}{found[3]}", page)


def _summary(name: str) -> str:
    head = ["what", "beside", "ratio", "command"]
    lines = [head, ["---", "---", "--:", "---"], *summary.table(name)]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


def _block(part: str, images: Path) -> str:
    path = measure.RESULTS / f"{part}.json"
    command = f"`make bench PART={part}`"
    if not path.exists():
        return f"\nNo run is recorded yet: {command}.\n\n"
    report = json.loads(path.read_text())
    pieces = [f"{command}{_circumstances(report)}"]
    for number, (title, rows) in enumerate(report["tables"].items(), 1):
        pieces += [_picture(images, f"{part}-{number}", title, _bars(title, rows)), _table(rows)]
    pieces += _extras(part, report["settings"], images)
    return "\n" + "\n\n".join(pieces) + "\n\n"


def _circumstances(report: dict[str, Any]) -> str:
    known = {"rounds": "rounds", "count": "events", "seconds": "s", "cores": "cores"}
    facts = {**report["settings"], **report}
    told = [f"{facts[name]:,} {word}" for name, word in known.items() if name in facts]
    if "load" in facts:
        told.append(f"load {facts['load']:.1f} at the end")
    return f" ({', '.join([*told, 'Python ' + report['python']])})"


def _bars(title: str, rows: list[dict[str, Any]]) -> str:
    values = {row["case"]: float(row["per_second"]) for row in rows}
    return plots.bars(title, values, ours=filter(_OURS.search, values), unit="/s")


def _table(rows: list[dict[str, Any]]) -> str:
    others = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    head = ["case", "per second", "spread", *(f"to {name}" for name in others)]
    body = [
        [
            row["case"],
            f"{row['per_second']:,}",
            f"{row['spread']:.0%}",
            *(f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in others),
        ]
        for row in rows
    ]
    return _markdown(head, body)


def _markdown(head: list[str], body: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


def _picture(images: Path, name: str, title: str, svg: str) -> str:
    (images / f"bench-{name}.svg").write_text(svg)
    return f"![{title}](images/bench-{name}.svg)"


def _extras(part: str, settings: dict[str, Any], images: Path) -> Iterator[str]:
    """Plots of latency and of rates over time, the table of order, and what could not be run."""
    if latency := settings.get("latency"):
        values = {f"{n}, {p[:3]}": ms for n, found in latency.items() for p, ms in found.items()}
        svg = plots.bars("Milliseconds at 200 events a second", values, ours=(), unit=" ms")
        yield _picture(images, f"{part}-latency", "latency", svg)
    for title, slices in settings.get("slices", {}).items():
        for what, unit in (("per_second", "/s"), ("megabytes", "MB")):
            points = {what.replace("_", " "): [(s["seconds"], s[what]) for s in slices]}
            words = f"{title}: {what.replace('_', ' ')} over time"
            svg = plots.lines(words, points, x_axis="s", unit=unit)
            yield _picture(images, f"{part}-{title.split()[-1]}-{what}".lower(), words, svg)
    if series := settings.get("series"):
        points = {name: list(enumerate(map(float, found))) for name, found in series.items()}
        svg = plots.lines("Rate of each lot", points, x_axis="lots", unit="/s")
        yield _picture(images, f"{part}-series", "rate of each lot", svg)
    if order := settings.get("order"):
        columns = list(next(iter(order.values())))
        body = [[name, *(str(found[c]) for c in columns)] for name, found in order.items()]
        yield _markdown([f"of {settings['failing_of']:,} events", *columns], body)
    for name, why in settings.get("missing", {}).items():
        yield f"{name} is not in these tables: {why}."


def main(arguments: list[str]) -> int:
    """Write the pages; with --check only name those that are behind the results."""
    check = "--check" in arguments
    behind = 0
    with TemporaryDirectory() as folder:
        for path in PAGES:
            page = path.read_text()
            new = fill(page, Path(folder) if check else DOCS / "images")
            if new != page:
                behind += 1
                print(
                    f"{path.relative_to(ROOT)} {'is behind: make plots' if check else ''}".strip()
                )
            if not check:
                path.write_text(new)
    return int(check and behind > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

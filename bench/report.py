"""python -m bench.report: the tables and plots of docs/benchmarks.md, from the recorded results."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import measure, plots

DOCS = Path(__file__).parent.parent / "docs"
PAGE = "benchmarks.md"

_BLOCK = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_OURS = re.compile("outrider|relay|consumer|publisher|source|event", re.IGNORECASE)


def fill(page: str, images: Path) -> str:
    """The page with every block made anew; its plots are written beside it."""
    images.mkdir(parents=True, exist_ok=True)
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], images)}{found[3]}", page)


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
    """What is no table of rates."""
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


def main() -> int:
    path = DOCS / PAGE
    path.write_text(fill(path.read_text(), DOCS / "images"))
    print(path.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())

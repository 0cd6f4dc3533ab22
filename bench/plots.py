"""Charts as plain SVG that follow the reader's light or dark colours: bars, and lines over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

WIDTH = 720
_LABEL, _BAR, _GAP, _TOP = 250, 20, 8, 40
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 } .axis { font-size: 11px; fill: #6e7781 }
.bar { fill: #afb8c1 } .ours { fill: #0969da }
.line { fill: none; stroke-width: 2 } .grid { stroke: #d0d7de; stroke-width: 1 }
.c0 { stroke: #0969da } .c1 { stroke: #bf8700 } .k0 { fill: #0969da } .k1 { fill: #bf8700 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .axis { fill: #8d96a0 } .bar { fill: #484f58 } .ours { fill: #4493f8 }
.grid { stroke: #30363d } .c0 { stroke: #4493f8 } .c1 { stroke: #d29922 }
.k0 { fill: #4493f8 } .k1 { fill: #d29922 }
}
</style>"""


def bars(title: str, values: Mapping[str, float], *, ours: Iterable[str], unit: str) -> str:
    """One bar for each value, as long as the value is; ours stand out."""
    room, most, own = WIDTH - _LABEL - 90, max(values.values()), set(ours)
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y, long = _TOP + number * (_BAR + _GAP), max(1.0, room * value / most)
        kind = "ours" if name in own else "bar"
        parts += [
            _text(_LABEL - 8, y + 15, name, anchor="end"),
            f'<rect class="{kind}" x="{_LABEL}" y="{y}" width="{long:.1f}" height="{_BAR}"/>',
            _text(_LABEL + long + 6, y + 15, f"{_number(value)}{unit}"),
        ]
    return _svg(title, _TOP + len(values) * (_BAR + _GAP) + 8, parts)


def lines(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, x_axis: str, unit: str
) -> str:
    """Two series at the most; both axes begin at zero."""
    left, right, bottom, height = 70, WIDTH - 20, 250, 190
    most_x = max(x for points in series.values() for x, _ in points) or 1.0
    most_y = max(y for points in series.values() for _, y in points) * 1.1 or 1.0
    parts = []
    for step in range(5):
        y = bottom - height * step / 4
        parts += [
            f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>',
            _text(left - 8, y + 4, _number(most_y * step / 4), kind="axis", anchor="end"),
        ]
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(
            f"{left + (right - left) * x / most_x:.1f},{bottom - height * y / most_y:.1f}"
            for x, y in points
        )
        parts += [
            f'<polyline class="line c{number}" points="{path}"/>',
            f'<rect class="k{number}" x="{left + 170 * number}" y="284" width="12" height="12"/>',
            _text(left + 18 + 170 * number, 295, name),
        ]
    parts += [
        _text(right, bottom + 18, f"{_number(most_x)} {x_axis}", kind="axis", anchor="end"),
        _text(left, bottom + 18, "0", kind="axis"),
        _text(left - 8, 50, unit, kind="axis", anchor="end"),
    ]
    return _svg(title, 306, parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(title: str, height: int, parts: list[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    )
    return "\n".join((head, _STYLE, _text(0, 18, title, kind="title"), *parts, "</svg>", ""))
